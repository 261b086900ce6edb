"""Partitions that are sent to tasks: values that can be pickled, with everything that a task needs to read its part."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .offsets import Queue
from .options import BadRecords
from .wanted import RowFilter, TopicRange


@dataclass(slots=True)
class Source:
    """Facts for all tasks on one broker group: the nodes to read from, and the wanted rows and columns."""

    namesrv: tuple[str, ...]
    group: str
    ordinal: int
    read_from: str
    roles: str
    read_timeout_s: float
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    row_filter: RowFilter
    min_bytes_per_second: int = 0
    max_bytes_per_second: int | None = None
    bad_records: BadRecords = "FAILFAST"
    group_identity: str = ""


@dataclass
class LogSlice(InputPartition):
    """The entries of a group's log from byte `start` to `end`.

    `index` is the index of the first entry, and `previous_chain` the chain crc of the entry before it. `end_chain` is
    the chain crc of the last entry, None if unknown. Without `has_entries`, rows do not name their entries, like the
    rows of `QueueRange`.
    """

    source: Source
    start: int
    end: int
    index: int
    previous_chain: int
    end_chain: int | None
    topics: list[TopicRange]
    pin: str | None
    preference: int
    has_entries: bool = True


@dataclass
class QueueRange(InputPartition):
    """The messages of a queue from offset `start` to `end`.

    All of them lie between the bytes `first_position` and `commit` of the log. `commit` is the commit position at the
    time of planning. A record beyond it belongs to a later topic of the same name.
    """

    source: Source
    queue: Queue
    start: int
    end: int
    first_position: int
    commit: int
    preference: int
