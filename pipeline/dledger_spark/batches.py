"""Arrow batches of the wanted rows that a task finds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .columns import BatchBuilder
from .entries import Span
from .errors import BadRecordError, CorruptDataError
from .nodes import NameServers, ReplicaReader
from .offsets import Queue
from .partitions import Source
from .records import RecordFinder
from .rows import Rows, RowSelector
from .schema import CORRUPT_RECORD
from .throttle import Throttle

if TYPE_CHECKING:
    from .wanted import TopicRange

_logger = logging.getLogger(__name__)

ROWS_PER_BATCH: Final = 4096
"""Maximum number of rows in a batch, so that Spark's memory per task is bounded by rows as well as by bytes."""
_FULL_ROWS: Final = 2048
_FULL_BYTES: Final = 2 << 20
"""Size in bytes from which found rows form a batch of their own. Fewer bytes wait for more, up to the other limit."""
_BODY_COLUMNS: Final = frozenset({"value", CORRUPT_RECORD})
"""Bodies are decoded where one of these is read."""


def replica_reader(name_servers: NameServers, source: Source, preference: int) -> ReplicaReader:
    """Return a reader of the group's replicas with the source's options."""
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
        reads_bodies = not _BODY_COLUMNS.isdisjoint(source.columns)
        self._source = source
        self._finder = RecordFinder(topics, reads_bodies=reads_bodies)
        self._selector = RowSelector(topics, source.row_filter)
        names = [topic.name for topic in topics]
        self._builder = BatchBuilder(source.columns, names, source.group, source.ordinal, has_entries=has_entries)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, data: bytes, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
        """Yield the full batches after adding the records in the spans of `data`. Other rows wait for the next call."""
        for records in self._finder.find(data, spans):
            rows = self._selector.select(records)
            if rows is not None and rows.undecoded:
                rows = self._handle_undecoded(rows)
            if rows is None:
                continue
            batch = self._builder.build(rows)
            self._pending.append(batch)
            self._pending_rows += batch.num_rows
            self._pending_bytes += batch.nbytes
            if self._pending_rows >= _FULL_ROWS or self._pending_bytes >= _FULL_BYTES:
                yield from self.rest()

    def _handle_undecoded(self, rows: Rows) -> Rows | None:
        """Return `rows`, without bad ones for `DROPMALFORMED`. Raises `BadRecordError`, `CorruptDataError`."""
        bad_records = self._source.bad_records
        for body in rows.undecoded.values():
            message = f"offset {body.queue_offset} of {Queue(body.topic, self._source.group, body.queue_id)}"
            if not body.is_bad:
                raise CorruptDataError(f"the body of {message} cannot be read: {body.why}")
            if bad_records == "FAILFAST":
                raise BadRecordError(message, body.why)
            if bad_records == "DROPMALFORMED":
                _logger.warning("event=bad_record_dropped message=%r reason=%r", message, body.why)
        return rows.without(rows.undecoded) if bad_records == "DROPMALFORMED" else rows

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the waiting rows."""
        batches, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                yield batch.slice(start, ROWS_PER_BATCH)
