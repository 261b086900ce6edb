r"""The properties of a whole batch, split at once.

A record's properties are `key \x01 value \x02` repeated, the last `\x02` may be missing. The rules are those of
`dledger_remoting.properties.parse_properties`, which is the reference: what is not UTF-8 becomes U+FFFD, pairs without
a key or a `\x01` are skipped, of a key that occurs twice the last value counts. A batch in which some row needs one of
these rules is parsed row by row; all others are split by Arrow.
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
        if not self._split(rows):
            self._parse(rows)

    def get(self, name: str) -> pa.Array:
        """One property of every row as `string`, null where it is missing."""
        if name not in self._columns:
            here = pc.equal(self._names, name)
            owners = pc.filter(self._owners, here)
            values = pc.filter(self._values, here)
            if len(owners) < self._count:
                values = pc.take(values, pc.index_in(_numbers(self._count), value_set=owners))
            self._columns[name] = values
        return self._columns[name]

    def as_maps(self) -> pa.Array:
        """All properties of every row, as `map<string, string>`."""
        return pa.MapArray.from_arrays(self._starts, self._names, self._values)

    def as_headers(self) -> pa.Array:
        """The application's own properties of every row, as `list<struct<key: string, value: binary>>`."""
        own = pc.invert(pc.is_in(self._names, value_set=_RESERVED))
        so_far = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(own.cast(pa.int32()))])
        names, values = pc.filter(self._names, own), pc.filter(self._values, own).cast(pa.binary())
        structs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
        return pa.ListArray.from_arrays(pc.take(so_far, self._starts), structs)

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
            one = pa.array([text.replace(_VALUE_END, _NAME_END)], pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return False
        flat = pc.split_pattern(one, _NAME_END.decode()).values
        count = len(flat) // 2
        self._names = pc.take(flat, _evens(count))
        self._values = pc.take(flat, pc.add(_evens(count), pa.scalar(1, pa.int32())))
        counts = pc.count_substring(rows, _NAME_END.decode("latin-1"))
        self._starts = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
        self._owners = pc.list_parent_indices(pa.ListArray.from_arrays(self._starts, self._names))
        return self._distinct()

    def _distinct(self) -> bool:
        """Whether no row has an empty name or a name twice."""
        if not len(self._names):
            return True
        encoded = self._names.dictionary_encode()
        kinds = len(encoded.dictionary)
        if pc.min(pc.binary_length(encoded.dictionary)).as_py() == 0:
            return False
        places = pc.add(pc.multiply(self._owners, kinds), encoded.indices)
        return bool(pc.count_distinct(places).as_py() == len(places))

    def _parse(self, rows: pa.Array) -> None:
        counts, owners = array("i", (0,)), array("q")
        names: list[str] = []
        values: list[str] = []
        for number, row in enumerate(rows.to_pylist()):
            found = parse_properties(row)
            names += found.keys()
            values += found.values()
            counts.append(len(names))
            owners.extend((number,) * len(found))
        self._names, self._values = pa.array(names, pa.string()), pa.array(values, pa.string())
        self._starts, self._owners = pa.array(counts, pa.int32()), pa.array(owners, pa.int64())


def _evens(count: int) -> pa.Array:
    """0, 2, 4 and so on, `count` numbers."""
    return _kept_evens(1 << max(count - 1, 0).bit_length()).slice(0, count)


@lru_cache(maxsize=16)
def _kept_evens(count: int) -> pa.Array:
    return pa.array(range(0, 2 * count, 2), pa.int32())


@lru_cache(maxsize=16)
def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())
