"""Tasks of both modes: they begin with a partition and give Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .partitions import LogSlice, QueueRange
from .queues import read_range
from .segments import read_slice

if TYPE_CHECKING:
    import pyarrow as pa


def read_partition(partition: object) -> Iterator[pa.RecordBatch]:
    """The batches of one partition; nothing for the placeholder that Spark makes of an empty plan."""
    if isinstance(partition, LogSlice):
        return read_slice(partition)
    if isinstance(partition, QueueRange):
        return read_range(partition)
    return iter(())
