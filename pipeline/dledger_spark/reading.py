"""What the tasks of both modes share: they begin with a partition and give Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .columns import BYTES_PER_BATCH, ROWS_PER_BATCH, BatchBuilder
from .partitions import LogSlice, QueueRange, Source
from .records import RecordScanner, TopicRange

if TYPE_CHECKING:
    import pyarrow as pa


class BatchCollector:
    """Collects rows until they fill a batch."""

    def __init__(self, source: Source, topics: list[TopicRange]) -> None:
        self.scanner = RecordScanner(topics, source.row_filter)
        self._builder = BatchBuilder(source.columns, source.group, source.ordinal)

    def full(self) -> Iterator[pa.RecordBatch]:
        """The batch of the rows collected so far, if they fill one."""
        rows = self.scanner.rows
        if len(rows) >= ROWS_PER_BATCH or rows.value_bytes >= BYTES_PER_BATCH:
            yield self._builder.build(self.scanner.take())

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The batch of the rows that are left, if there are any."""
        if len(self.scanner.rows):
            yield self._builder.build(self.scanner.take())


def read_partition(partition: object) -> Iterator[pa.RecordBatch]:
    """The batches of one partition; nothing for the placeholder that Spark makes of an empty plan."""
    if isinstance(partition, LogSlice):
        from .segments import read_slice

        return read_slice(partition)
    if isinstance(partition, QueueRange):
        from .queues import read_range

        return read_range(partition)
    return iter(())
