"""From rows to Arrow batches, column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from ipaddress import ip_address
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dledger_remoting import properties as names

from . import rows as fields
from .properties import BatchProperties
from .rows import Rows
from .schema import CORRUPT_RECORD, arrow_schema
from .uncommon import host_text

_LOG_APPEND_TIME: Final = 1
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_MIN_MILLISECONDS: Final = pa.scalar(-62_135_596_800_000, pa.int64())
_END_MILLISECONDS: Final = pa.scalar(253_402_300_800_000, pa.int64())
"""The years 1 to 9999, UTC: what Python's datetime has."""
_QUEUES_PER_GROUP: Final = 65_536


class BatchBuilder:
    """Makes batches of the chosen columns from rows of one broker group."""

    def __init__(
        self, columns: Sequence[str], topics: Sequence[str], broker_group: str, ordinal: int, *, has_entries: bool
    ) -> None:
        """Prepare batches. `topics` are names by number; `has_entries` says whether rows come with log entries."""
        self._columns = tuple(columns)
        self._schema = arrow_schema(self._columns)
        self._origin = _Origin(tuple(topics), broker_group, ordinal, has_entries)

    def build(self, rows: Rows) -> pa.RecordBatch:
        """Return the batch of `rows`, in their order."""
        batch = _Batch(rows, self._origin)
        arrays = [_BUILDERS[name](batch) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Origin(NamedTuple):
    topics: tuple[str, ...]
    group: str
    ordinal: int
    has_entries: bool


class _Batch:
    """The rows of one batch, and the arrays that several columns need."""

    def __init__(self, rows: Rows, origin: _Origin) -> None:
        self.rows = rows
        self.count = rows.count
        self.origin = origin

    @cached_property
    def properties(self) -> BatchProperties:
        """The properties of all rows."""
        return BatchProperties(self.rows.properties())

    def timestamps(self, place: int) -> pa.Array:
        """Return the field of milliseconds at byte `place` of every head.

        Producers may set any time. A time outside the years 1 to 9999 is null: collected rows could not hold it.
        """
        numbers = self.rows.integers(place, "q")
        bounds = pc.min_max(numbers)
        if bounds["min"].as_py() < _MIN_MILLISECONDS.as_py() or bounds["max"].as_py() >= _END_MILLISECONDS.as_py():
            is_representable = pc.and_(
                pc.greater_equal(numbers, _MIN_MILLISECONDS), pc.less(numbers, _END_MILLISECONDS)
            )
            numbers = pc.if_else(is_representable, numbers, pa.scalar(None, pa.int64()))
        return numbers.view(_MILLISECONDS).cast(_MICROSECONDS)

    def hosts(self, place: int, host_index: Literal[0, 1]) -> pa.Array:
        """Return the addresses at byte `place` of every head. Index 0 is the born host, 1 the store host."""
        encoded = self.rows.integers(place, "q").dictionary_encode()
        texts = pa.array([_ipv4_text(number) for number in encoded.dictionary.to_pylist()], pa.string())
        ipv4_hosts = pc.take(texts, encoded.indices)
        if not self.rows.hosts:
            return ipv4_hosts
        positions = self.rows.integers(fields.PHYSICAL_OFFSET, "q").to_pylist()
        pairs = [self.rows.hosts.get(position) for position in positions]
        ipv6_hosts = pa.array([None if pair is None else pair[host_index] for pair in pairs], pa.string())
        return pc.coalesce(ipv6_hosts, ipv4_hosts)

    def constant(self, value: int | str, kind: pa.DataType) -> pa.Array:
        """Return the same value for every row."""
        return _constant(value, kind, 1 << (self.count - 1).bit_length()).slice(0, self.count)


@lru_cache(maxsize=64)
def _constant(value: int | str, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=4096)
def _ipv4_text(number: int) -> str:
    return host_text(number.to_bytes(8, "big", signed=True))


def _topics(batch: _Batch) -> pa.Array:
    if len(batch.origin.topics) == 1:
        return batch.constant(batch.origin.topics[0], pa.string())
    return pc.take(pa.array(batch.origin.topics, pa.string()), batch.rows.topics())


def _partitions(batch: _Batch) -> pa.Array:
    queue_ids = batch.rows.integers(fields.QUEUE_ID, "i")
    if batch.origin.ordinal == 0:
        return queue_ids
    return pc.add(queue_ids, pa.scalar(batch.origin.ordinal * _QUEUES_PER_GROUP, pa.int32()))


def _message_ids(batch: _Batch) -> pa.Array:
    ids = batch.properties.get(names.UNIQUE_KEY)
    if ids.null_count == 0:
        return ids
    hosts = batch.hosts(fields.STORE_HOST, 1).to_pylist()
    positions = batch.rows.integers(fields.PHYSICAL_OFFSET, "q").to_pylist()
    offset_ids = [_offset_message_id(*pair) for pair in zip(hosts, positions, strict=True)]
    return pc.coalesce(ids, pa.array(offset_ids, pa.string()))


def _offset_message_id(store_host: str, physical_offset: int) -> str:
    """Return an offset message id: store host and physical offset in upper-case hex, as in `dledger_remoting.ids`."""
    return f"{_packed_host(store_host)}{physical_offset & 0xFFFFFFFFFFFFFFFF:016X}"


@lru_cache(maxsize=256)
def _packed_host(host: str) -> str:
    address, _, port = host.rpartition(":")
    return (ip_address(address.strip("[]")).packed + int(port).to_bytes(4, "big")).hex().upper()


def _entry_numbers(batch: _Batch, numbers: Callable[[Rows], pa.Array]) -> pa.Array:
    """Return numbers of every row's entry; null if the rows came without their entries."""
    return numbers(batch.rows) if batch.origin.has_entries else pa.nulls(batch.count, pa.int64())


_BUILDERS: Final[dict[str, Callable[[_Batch], pa.Array]]] = {
    "key": lambda batch: batch.properties.get(names.KEYS).cast(pa.binary()),
    "value": lambda batch: batch.rows.values(),
    "topic": _topics,
    "partition": _partitions,
    "offset": lambda batch: batch.rows.integers(fields.QUEUE_OFFSET, "q"),
    "timestamp": lambda batch: batch.timestamps(fields.STORE_TIMESTAMP),
    "timestampType": lambda batch: batch.constant(_LOG_APPEND_TIME, pa.int32()),
    "headers": lambda batch: batch.properties.as_headers(),
    "broker_group": lambda batch: batch.constant(batch.origin.group, pa.string()),
    "queue_id": lambda batch: batch.rows.integers(fields.QUEUE_ID, "i"),
    "tags": lambda batch: batch.properties.get(names.TAGS),
    "keys": lambda batch: batch.properties.get(names.KEYS),
    "born_timestamp": lambda batch: batch.timestamps(fields.BORN_TIMESTAMP),
    "born_host": lambda batch: batch.hosts(fields.BORN_HOST, 0),
    "store_host": lambda batch: batch.hosts(fields.STORE_HOST, 1),
    "message_id": _message_ids,
    "reconsume_times": lambda batch: batch.rows.integers(fields.RECONSUME_TIMES, "i"),
    "properties": lambda batch: batch.properties.as_maps(),
    "physical_offset": lambda batch: batch.rows.integers(fields.PHYSICAL_OFFSET, "q"),
    "term": lambda batch: _entry_numbers(batch, Rows.terms),
    "log_index": lambda batch: _entry_numbers(batch, Rows.log_indexes),
    CORRUPT_RECORD: lambda batch: batch.rows.undecoded_bodies(),
}
