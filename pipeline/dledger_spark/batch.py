"""Batch reads: planned once on the driver, read by tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from .filters import PushedFilters
from .options import ReadOptions
from .reading import read_partition

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads a bounded range of topics; the same rows on every retry of a task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        """Plan the read; the only part that asks which topics and offsets there are."""
        from .planning import BatchPlanner

        return list(BatchPlanner(self._options, self._pushed).partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(partition)


class PushdownBatchReader(BatchReader):
    """A batch read that takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Take the filters that narrow what is read; the others stay with Spark."""
        return list(self._pushed.push(filters))


def batch_reader(options: ReadOptions) -> BatchReader:
    """The reader that the options choose.

    Spark (4.3) keeps the plan of a loaded frame with the filters that were pushed last, and reads by it whatever is
    asked of that frame next: `frame.where(a).union(frame)` gives wrong rows. So filters are taken on demand only.
    """
    return PushdownBatchReader(options) if options.push_down_filters else BatchReader(options)
