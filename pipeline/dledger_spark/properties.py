r"""The properties of a whole batch, split at once.

A record's properties are `key \x01 value \x02` repeated; the last `\x02` may be missing. The reference is
`dledger_remoting.properties.parse_properties`, which has three more rules. Bytes that are not UTF-8 become U+FFFD,
pairs without a key or a `\x01` are skipped, and the last value of a repeated key counts. A batch in which some row
needs one of these rules is parsed row by row. All other batches are split by Arrow.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dledger_remoting.properties import RESERVED_NAMES, START_DELIVER_TIME, parse_properties

_NAME_END: Final = b"\x01"
_VALUE_END: Final = b"\x02"
_ALL_BUT_SEPARATORS: Final = bytes(set(range(256)) - {1, 2})
_RESERVED: Final = pa.array(sorted({*RESERVED_NAMES, START_DELIVER_TIME}), pa.string())


class BatchProperties:
    """The properties of the rows of a batch, which are an array of `binary`; all texts are UTF-8."""

    def __init__(self, rows: pa.Array) -> None:
        self._count = len(rows)
        self._columns: dict[str, pa.Array] = {}
        self._common: list[str] = []
        """The names of every row's properties, if all rows have the same names in the same order; else empty."""
        if not self._split(rows):
            self._parse(rows)

    def get(self, name: str) -> pa.Array:
        """Return one property of every row as `string`, null where it is missing."""
        if name not in self._columns and self._common:
            self._columns[name] = self._common_column(name)
        if name not in self._columns:
            is_named = pc.equal(self._names, name)
            owners = pc.filter(self._owners, is_named)
            values = pc.filter(self._values, is_named)
            if len(owners) < self._count:
                values = pc.take(values, pc.index_in(_numbers(self._count), value_set=owners))
            self._columns[name] = values
        return self._columns[name]

    def _common_column(self, name: str) -> pa.Array:
        """Return one property, if all rows have the same properties in the same order."""
        if name not in self._common:
            return pa.nulls(self._count, pa.string())
        step = pc.multiply(_numbers(self._count), pa.scalar(len(self._common), pa.int64()))
        return pc.take(self._values, pc.add(step, pa.scalar(self._common.index(name), pa.int64())))

    def as_maps(self) -> pa.Array:
        """Return all properties of every row, as `map<string, string>`."""
        return pa.MapArray.from_arrays(self._starts, self._names, self._values)

    def as_headers(self) -> pa.Array:
        """Return the application's own properties of every row, as `list<struct<key: string, value: binary>>`."""
        is_own = pc.invert(pc.is_in(self._names, value_set=_RESERVED))
        own_before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(is_own.cast(pa.int32()))])
        names, values = pc.filter(self._names, is_own), pc.filter(self._values, is_own).cast(pa.binary())
        structs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
        return pa.ListArray.from_arrays(pc.take(own_before, self._starts), structs)

    def _split(self, rows: pa.Array) -> bool:
        """Split the text of all rows in one go; False if that would not obey the rules for each of them."""
        terminated = pc.or_(pc.ends_with(rows, _VALUE_END), pc.equal(pc.binary_length(rows), 0))
        if not pc.all(terminated).as_py():
            rows = pc.if_else(terminated, rows, pc.binary_join_element_wise(rows, _VALUE_END, b""))
        text = bytes(memoryview(rows.buffers()[2])) if self._count else b""
        separators = text.translate(None, _ALL_BUT_SEPARATORS)
        if separators != b"\x01\x02" * (len(separators) // 2):
            return False
        try:
            joined = pa.array([text.replace(_VALUE_END, _NAME_END)], pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return False
        flat = pc.split_pattern(joined, _NAME_END.decode()).values
        count = len(flat) // 2
        self._names = pc.take(flat, _evens(count))
        self._values = pc.take(flat, pc.add(_evens(count), pa.scalar(1, pa.int32())))
        self._common = self._common_names(rows, flat, count)
        if self._common:
            per_row = pa.scalar(len(self._common), pa.int32())
            self._starts = pc.multiply(_numbers(self._count + 1).cast(pa.int32()), per_row)
            return True
        counts = pc.count_substring(rows, _NAME_END.decode("latin-1"))
        self._starts = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
        self._owners = pc.list_parent_indices(pa.ListArray.from_arrays(self._starts, self._names))
        return self._has_distinct_names()

    def _common_names(self, rows: pa.Array, flat: pa.Array, count: int) -> list[str]:
        """Return the first row's names, each once, if all rows have the same names in this order, else none.

        `flat` has the names and values of all rows in turns, `count` is the number of pairs. Most batches are like
        that. A comparison of bytes is enough, without a hash of each name, or a count of each row's pairs.
        """
        per_row, rest = divmod(count, self._count) if self._count else (0, 0)
        if rest or not per_row or not _have_texts(rows, flat, 2 * per_row):
            return []
        first = self._names.slice(0, per_row).to_pylist()
        lengths = pc.binary_length(self._names)
        if len(set(first)) < per_row or "" in first or not _repeats(lengths, 4 * per_row, 4 * len(lengths), 1):
            return []
        size = len("".join(first).encode())
        return first if _repeats(self._names, size, size * self._count, 2) else []

    def _has_distinct_names(self) -> bool:
        """Return True if no row has an empty name or a name twice."""
        if not len(self._names):
            return True
        encoded = self._names.dictionary_encode()
        name_count = len(encoded.dictionary)
        if pc.min(pc.binary_length(encoded.dictionary)).as_py() == 0:
            return False
        pairs = pc.add(pc.multiply(self._owners, name_count), encoded.indices)
        return bool(pc.count_distinct(pairs).as_py() == len(pairs))

    def _parse(self, rows: pa.Array) -> None:
        counts, owners = array("i", (0,)), array("q")
        names: list[str] = []
        values: list[str] = []
        for number, row in enumerate(rows.to_pylist()):
            properties = parse_properties(row)
            names += properties.keys()
            values += properties.values()
            counts.append(len(names))
            owners.extend((number,) * len(properties))
        self._names, self._values = pa.array(names, pa.string()), pa.array(values, pa.string())
        self._starts, self._owners = pa.array(counts, pa.int32()), pa.array(owners, pa.int64())


def _have_texts(rows: pa.Array, flat: pa.Array, texts: int) -> bool:
    """Return True if each row has exactly this number of texts, each followed by one separator."""
    offsets = memoryview(flat.buffers()[1]).cast("i")[flat.offset :][: texts * len(rows)][::texts]
    numbers = array("i")
    numbers.frombytes(offsets.tobytes())
    text_bytes = pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])
    row_offsets = pa.Array.from_buffers(pa.int32(), len(rows), [None, rows.buffers()[1]], offset=rows.offset)
    separators = pc.multiply(_numbers(len(rows)).cast(pa.int32()), pa.scalar(texts, pa.int32()))
    return bool(pc.all(pc.equal(pc.add(text_bytes, separators), row_offsets)).as_py())


def _repeats(values: pa.Array, period: int, size: int, buffer: int) -> bool:
    """Return True if the first `size` bytes of an array's buffer repeat its first `period` bytes."""
    data = bytes(memoryview(values.buffers()[buffer])[:size])
    return len(data) == size and data[period:] == data[: size - period]


def _evens(count: int) -> pa.Array:
    """Return the numbers 0, 2, 4 and so on, `count` of them."""
    return _cached_evens(1 << max(count - 1, 0).bit_length()).slice(0, count)


@lru_cache(maxsize=16)
def _cached_evens(count: int) -> pa.Array:
    return pa.array(range(0, 2 * count, 2), pa.int32())


@lru_cache(maxsize=16)
def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())
