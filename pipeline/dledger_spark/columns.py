"""From collected rows to Arrow batches, column by column.

Fields with a fixed place in a record's head are cut out of all heads at once: joined, viewed as integers, taken with a
stride, and swapped to the machine's byte order, all of it in C.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from dledger_remoting import properties as names

from .properties import BatchProperties
from .records import HEAD_BYTES, Rows, host_text
from .schema import arrow_schema

ROWS_PER_BATCH: Final = 4096
BYTES_PER_BATCH: Final = 8 << 20
"""A batch is closed at either of the two, so that large messages do not make large batches."""

_QUEUE_ID: Final = 12
_QUEUE_OFFSET: Final = 20
_PHYSICAL_OFFSET: Final = 28
_BORN_TIMESTAMP: Final = 40
_BORN_HOST: Final = 48
_STORE_TIMESTAMP: Final = 56
_STORE_HOST: Final = 64
_RECONSUME_TIMES: Final = 72
_LOG_APPEND_TIME: Final = 1
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_QUEUES_PER_GROUP: Final = 65_536
_PROPERTY_COLUMNS: Final = frozenset({"key", "keys", "tags", "message_id", "properties", "headers"})


class BatchBuilder:
    """Makes batches of the chosen columns from rows of one broker group."""

    def __init__(self, columns: Sequence[str], broker_group: str, ordinal: int) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(self._columns)
        self._group = broker_group
        self._ordinal = ordinal
        self._wants_properties = not _PROPERTY_COLUMNS.isdisjoint(self._columns)

    def build(self, rows: Rows) -> pa.RecordBatch:
        """The batch of `rows`, in their order."""
        batch = _Batch(rows, self._group, self._ordinal, self._wants_properties)
        arrays = [_BUILDERS[name](batch) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Batch:
    """The rows of one batch, with what several columns need of them."""

    def __init__(self, rows: Rows, broker_group: str, ordinal: int, wants_properties: bool) -> None:
        self.rows = rows
        self.count = len(rows)
        self.group = broker_group
        self.ordinal = ordinal
        self._heads = memoryview(b"".join((*rows.heads, bytes(HEAD_BYTES))))
        self.properties = BatchProperties(rows.properties if wants_properties else [])

    def integers(self, offset: int, code: Literal["i", "q"]) -> pa.Array:
        """The integer field at byte `offset` of every head."""
        width = 4 if code == "i" else 8
        field = self._heads[offset : offset + HEAD_BYTES * self.count].cast(code)[:: HEAD_BYTES // width]
        numbers = array(code)
        numbers.frombytes(field.tobytes())
        if sys.byteorder == "little":
            numbers.byteswap()
        kind = pa.int32() if code == "i" else pa.int64()
        return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(numbers)])

    def timestamps(self, offset: int) -> pa.Array:
        """The field of milliseconds at byte `offset` of every head."""
        return self.integers(offset, "q").view(_MILLISECONDS).cast(_MICROSECONDS)

    def hosts(self, offset: int, which: int) -> pa.Array:
        """The addresses at byte `offset` of every head."""
        texts = [_ipv4_text(head[offset : offset + 8]) for head in self.rows.heads]
        for row, pair in self.rows.hosts.items():
            texts[row] = pair[which]
        return pa.array(texts, pa.string())

    def constant(self, value: int | str, kind: pa.DataType) -> pa.Array:
        """The same value in every row."""
        return _constant(value, kind, self.count)

    def of_entries(self, field: Literal[0, 1]) -> pa.Array:
        """Term (0) or index (1) of every row's entry; null if the rows did not come with their entries."""
        if not self.rows.entries:
            return pa.nulls(self.count, pa.int64())
        numbers = array("q")
        for entry in self.rows.entries:
            numbers.extend(array("q", (entry[field],)) * (entry[2] - len(numbers)))
        return pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(numbers)])


@lru_cache(maxsize=64)
def _constant(value: int | str, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=4096)
def _ipv4_text(data: bytes) -> str:
    return host_text(data)


def _values(batch: _Batch) -> pa.Array:
    values = batch.rows.values
    ends = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), batch.count, buffers)


def _topics(batch: _Batch) -> pa.Array:
    topics = batch.rows.topics
    if topics.count(topics[0]) == batch.count:
        return batch.constant(topics[0], pa.string())
    return pa.array(topics, pa.string())


def _partitions(batch: _Batch) -> pa.Array:
    queue_ids = batch.integers(_QUEUE_ID, "i")
    if batch.ordinal == 0:
        return queue_ids
    return pc.add(queue_ids, pa.scalar(batch.ordinal * _QUEUES_PER_GROUP, pa.int32()))


def _message_ids(batch: _Batch) -> pa.Array:
    ids = batch.properties.get(names.UNIQUE_KEY)
    if None in ids:
        heads = batch.rows.heads
        ids = [_offset_message_id(batch, row, heads[row]) if one is None else one for row, one in enumerate(ids)]
    return pa.array(ids, pa.string())


def _offset_message_id(batch: _Batch, row: int, head: bytes) -> bytes:
    """Upper-case hex of store host and physical offset, as `dledger_remoting.ids` has it."""
    host = head[_STORE_HOST : _STORE_HOST + 8]
    if row in batch.rows.hosts:
        from ipaddress import ip_address

        address, _, port = batch.rows.hosts[row][1].rpartition(":")
        host = ip_address(address.strip("[]")).packed + int(port).to_bytes(4, "big")
    return (host + head[_PHYSICAL_OFFSET : _PHYSICAL_OFFSET + 8]).hex().upper().encode()


_BUILDERS: Final[dict[str, Callable[[_Batch], pa.Array]]] = {
    "key": lambda batch: pa.array(batch.properties.get(names.KEYS), pa.binary()),
    "value": _values,
    "topic": _topics,
    "partition": _partitions,
    "offset": lambda batch: batch.integers(_QUEUE_OFFSET, "q"),
    "timestamp": lambda batch: batch.timestamps(_STORE_TIMESTAMP),
    "timestampType": lambda batch: batch.constant(_LOG_APPEND_TIME, pa.int32()),
    "headers": lambda batch: batch.properties.as_headers(),
    "broker_group": lambda batch: batch.constant(batch.group, pa.string()),
    "queue_id": lambda batch: batch.integers(_QUEUE_ID, "i"),
    "tags": lambda batch: pa.array(batch.properties.get(names.TAGS), pa.string()),
    "keys": lambda batch: pa.array(batch.properties.get(names.KEYS), pa.string()),
    "born_timestamp": lambda batch: batch.timestamps(_BORN_TIMESTAMP),
    "born_host": lambda batch: batch.hosts(_BORN_HOST, 0),
    "store_host": lambda batch: batch.hosts(_STORE_HOST, 1),
    "message_id": _message_ids,
    "reconsume_times": lambda batch: batch.integers(_RECONSUME_TIMES, "i"),
    "properties": lambda batch: batch.properties.as_maps(),
    "physical_offset": lambda batch: batch.integers(_PHYSICAL_OFFSET, "q"),
    "term": lambda batch: batch.of_entries(0),
    "log_index": lambda batch: batch.of_entries(1),
}
