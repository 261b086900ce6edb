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
from .schema import arrow_schema
from .uncommon import host_text

_LOG_APPEND_TIME: Final = 1
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_MAX_MILLISECONDS: Final = pa.scalar((2**63 - 1) // 1000, pa.int64())
_MIN_MILLISECONDS: Final = pa.scalar(-(2**63 // 1000), pa.int64())
_QUEUES_PER_GROUP: Final = 65_536


class BatchBuilder:
    """Makes batches of the chosen columns from rows of one broker group."""

    def __init__(
        self, columns: Sequence[str], topics: Sequence[str], broker_group: str, ordinal: int, *, has_entries: bool
    ) -> None:
        """`topics` are the names of the topics by number; `has_entries` says whether rows come with log entries."""
        self._columns = tuple(columns)
        self._schema = arrow_schema(self._columns)
        self._origin = _Origin(tuple(topics), broker_group, ordinal, has_entries)

    def build(self, rows: Rows) -> pa.RecordBatch:
        """The batch of `rows`, in their order."""
        batch = _Batch(rows, self._origin)
        arrays = [_BUILDERS[name](batch) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Origin(NamedTuple):
    topics: tuple[str, ...]
    group: str
    ordinal: int
    has_entries: bool


class _Batch:
    """The rows of one batch, with what several columns need of them."""

    def __init__(self, rows: Rows, origin: _Origin) -> None:
        self.rows = rows
        self.count = rows.count
        self.origin = origin

    @cached_property
    def properties(self) -> BatchProperties:
        """The properties of all rows."""
        return BatchProperties(self.rows.properties())

    def timestamps(self, place: int) -> pa.Array:
        """The field of milliseconds at byte `place` of every head.

        Producers may say any time. One that Spark's microseconds do not reach becomes the nearest that they do.
        """
        numbers = self.rows.integers(place, "q")
        try:
            return numbers.view(_MILLISECONDS).cast(_MICROSECONDS)
        except pa.ArrowInvalid:
            reached = pc.min_element_wise(pc.max_element_wise(numbers, _MIN_MILLISECONDS), _MAX_MILLISECONDS)
            return reached.view(_MILLISECONDS).cast(_MICROSECONDS)

    def hosts(self, place: int, which: Literal[0, 1]) -> pa.Array:
        """The addresses at byte `place` of every head."""
        encoded = self.rows.integers(place, "q").dictionary_encode()
        texts = pa.array([_ipv4_text(number) for number in encoded.dictionary.to_pylist()], pa.string())
        found = pc.take(texts, encoded.indices)
        if not self.rows.hosts:
            return found
        positions = self.rows.integers(fields.PHYSICAL_OFFSET, "q").to_pylist()
        pairs = [self.rows.hosts.get(position) for position in positions]
        others = pa.array([None if pair is None else pair[which] for pair in pairs], pa.string())
        return pc.coalesce(others, found)

    def constant(self, value: int | str, kind: pa.DataType) -> pa.Array:
        """The same value in every row."""
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
    made = [_offset_message_id(*pair) for pair in zip(hosts, positions, strict=True)]
    return pc.coalesce(ids, pa.array(made, pa.string()))


def _offset_message_id(store_host: str, physical_offset: int) -> str:
    """Upper-case hex of store host and physical offset, as `dledger_remoting.ids` has it."""
    return f"{_packed_host(store_host)}{physical_offset & 0xFFFFFFFFFFFFFFFF:016X}"


@lru_cache(maxsize=256)
def _packed_host(host: str) -> str:
    address, _, port = host.rpartition(":")
    return (ip_address(address.strip("[]")).packed + int(port).to_bytes(4, "big")).hex().upper()


def _of_entries(batch: _Batch, numbers: Callable[[Rows], pa.Array]) -> pa.Array:
    """Numbers of every row's entry; null if the rows did not come with their entries."""
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
    "term": lambda batch: _of_entries(batch, Rows.terms),
    "log_index": lambda batch: _of_entries(batch, Rows.log_indexes),
}
