"""Batch reads: planned once on the driver, read by tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from .filters import PushedFilters
from .options import ReadOptions
from .partitions import LogSlice, QueueRange, Source
from .reading import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from .wanted import TopicRange

_NO_SOURCE: Any = None
"""Placeholder for the source of a part's own range: `Shared` has the source."""


@dataclass(slots=True)
class Shared:
    """Data that all tasks on one broker group share."""

    source: Source
    topics: list[TopicRange]


@dataclass
class Part(InputPartition):
    """One task: a slice or range without the shared part of its broker group, and the shared part's number."""

    shared: int
    own: LogSlice | QueueRange


class BatchReader(DataSourceReader):
    """Reads a bounded range of topics; the same rows on every retry of a task.

    Spark pickles the reader once for all tasks, and each partition for itself, before it asks for the partitions. So
    the reader plans when it is pickled, and takes along what the tasks share.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = PushedFilters()
        self._parts: list[InputPartition] | None = None
        self._failure: Exception | None = None
        self._shared: list[Shared] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need."""
        self._plan()
        return {"_shared": self._shared, "_parts": [], "_failure": None}

    def partitions(self) -> list[InputPartition]:
        """Plan the read; only this method asks which topics and offsets exist."""
        self._plan()
        if self._failure is not None:
            raise self._failure
        return [] if self._parts is None else self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, Part):
            return read_partition(partition)
        shared, own = self._shared[partition.shared], partition.own
        if isinstance(own, LogSlice):
            return read_partition(replace(own, source=shared.source, topics=shared.topics))
        return read_partition(replace(own, source=shared.source))

    def _plan(self) -> None:
        """Plan once. Errors are kept for `partitions`, because a pickler would report them as its own."""
        if self._parts is not None or self._failure is not None:
            return
        from .planning import BatchPlanner

        try:
            self._parts, self._shared = _split_shared_parts(BatchPlanner(self._options, self._pushed).partitions())
        except Exception as error:
            self._failure = error


class PushdownBatchReader(BatchReader):
    """A batch read that takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Take the filters that narrow what is read; the others stay with Spark."""
        return list(self._pushed.push(filters))


def batch_reader(options: ReadOptions) -> BatchReader:
    """Return the reader that the options choose.

    Spark (4.3) keeps the plan of a loaded frame with the filters that were pushed last, and uses it for later questions
    to that frame. `frame.where(a).union(frame)` then gives wrong rows. So filters are taken on demand only.
    """
    return PushdownBatchReader(options) if options.push_down_filters else BatchReader(options)


def _split_shared_parts(ranges: Sequence[LogSlice | QueueRange]) -> tuple[list[InputPartition], list[Shared]]:
    """Return the parts of a plan, and the data that the parts of each broker group share, by number."""
    numbers: dict[str, int] = {}
    shared: list[Shared] = []
    parts: list[InputPartition] = []
    for part in ranges:
        number = numbers.setdefault(part.source.group, len(shared))
        if number == len(shared):
            shared.append(Shared(part.source, part.topics if isinstance(part, LogSlice) else []))
        own = (
            replace(part, source=_NO_SOURCE, topics=[])
            if isinstance(part, LogSlice)
            else replace(part, source=_NO_SOURCE)
        )
        parts.append(Part(number, own))
    return parts, shared
