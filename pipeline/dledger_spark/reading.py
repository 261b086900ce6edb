"""Entry point of tasks in both modes: reads a partition, and yields Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .partitions import LogSlice, QueueRange
from .queues import read_range
from .segments import read_slice

if TYPE_CHECKING:
    import pyarrow as pa


def read_partition(partition: object) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one partition. The placeholder that Spark makes of an empty plan has none."""
    if isinstance(partition, LogSlice):
        return read_slice(partition)
    if isinstance(partition, QueueRange):
        return read_range(partition)
    return iter(())
