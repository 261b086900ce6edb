"""Partitions that are sent to tasks: plain values that pickle, and everything that a task needs to read its part."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .offsets import Queue
from .wanted import RowFilter, TopicRange


@dataclass(slots=True)
class Source:
    """What all tasks on one broker group know: where to read, what to make of it."""

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


@dataclass
class LogSlice(InputPartition):
    """The entries of a group's log from byte `start` to `end`.

    `previous_chain` is the chain crc before the first, which has the given `index`; `end_chain`, if known, the one of
    the last.
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


@dataclass
class QueueRange(InputPartition):
    """The messages of a queue from offset `start` to `end`.

    All of them lie between the bytes `first_position` and `commit` of the log, up to where it was committed when they
    were planned; a record beyond belongs to a later topic of the same name.
    """

    source: Source
    queue: Queue
    start: int
    end: int
    first_position: int
    commit: int
    preference: int
