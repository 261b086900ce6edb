"""Arrow batches of the wanted rows that a task finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .columns import BatchBuilder
from .entries import Span
from .nodes import NameServers, ReplicaReader
from .partitions import Source
from .records import RecordFinder
from .rows import RowSelector
from .throttle import Throttle

if TYPE_CHECKING:
    from .wanted import TopicRange

ROWS_PER_BATCH: Final = 4096
"""No batch is larger, so that Spark's memory per task is bounded by rows as well as by bytes."""
_FULL_ROWS: Final = 2048
_FULL_BYTES: Final = 2 << 20
"""What is found at once is a batch of its own from either of the two on; less waits for more."""


def replica_reader(name_servers: NameServers, source: Source, preference: int) -> ReplicaReader:
    """What reads a part from the replicas of its group, as the options say."""
    return ReplicaReader(
        name_servers,
        source.group,
        source.read_from,
        source.read_timeout_s,
        preference,
        min_bytes_per_second=source.min_bytes_per_second,
        throttle=Throttle(source.max_bytes_per_second),
    )


class BatchCollector:
    """Makes batches of the wanted rows of buffers with records."""

    def __init__(self, source: Source, topics: Sequence[TopicRange], *, has_entries: bool) -> None:
        self._finder = RecordFinder(topics)
        self._selector = RowSelector(topics, source.row_filter)
        names = [topic.name for topic in topics]
        self._builder = BatchBuilder(source.columns, names, source.group, source.ordinal, has_entries=has_entries)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def add(self, data: bytes, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
        """The batches that are full with the records in the spans of `data`; what is left waits."""
        for records in self._finder.find(data, spans):
            rows = self._selector.select(records)
            if rows is None:
                continue
            batch = self._builder.build(rows)
            self._waiting.append(batch)
            self._waiting_rows += batch.num_rows
            self._waiting_bytes += batch.nbytes
            if self._waiting_rows >= _FULL_ROWS or self._waiting_bytes >= _FULL_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The batches of the rows that wait, if there are any."""
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        for batch in waiting:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                yield batch.slice(start, ROWS_PER_BATCH)
