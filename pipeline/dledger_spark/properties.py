r"""The properties of a whole batch, split at once.

A record's properties are `key \x01 value \x02` repeated. Mostly all records of a batch have the same names in the same
order, and then one split of all their text gives every column by slicing. Whatever is not that regular is parsed row by
row, with the rules of `dledger_remoting.properties.parse_properties`, which is the reference.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, chain
from typing import Final

import pyarrow as pa

from dledger_remoting.properties import RESERVED_NAMES

_NAME_END: Final = b"\x01"
_VALUE_END: Final = b"\x02"
_ALL_BUT_SEPARATORS: Final = bytes(set(range(256)) - {1, 2})
_RESERVED: Final = frozenset(name.encode() for name in RESERVED_NAMES)


class BatchProperties:
    """The properties of the rows of a batch; all texts are UTF-8."""

    def __init__(self, rows: list[bytes]) -> None:
        self._count = len(rows)
        self._names: tuple[bytes, ...] | None = None
        self._values: list[bytes] = []
        self._dicts: list[dict[bytes, bytes]] = []
        self._split(rows)

    def get(self, name: str) -> list[bytes | None]:
        """One property of every row, None where it is missing."""
        key = name.encode()
        if self._names is None:
            return [properties.get(key) for properties in self._dicts]
        if key not in self._names:
            return [None] * self._count
        return list(self._values[self._names.index(key) :: len(self._names)])

    def as_maps(self) -> pa.Array:
        """All properties of every row, as `map<string, string>`."""
        if self._names is None:
            counts, names, values = self._flat(frozenset())
            return pa.MapArray.from_arrays(
                _offsets(counts), pa.array(names, pa.string()), pa.array(values, pa.string())
            )
        offsets, names = _repeated(self._names, self._count)
        return pa.MapArray.from_arrays(offsets, names, pa.array(self._values, pa.string()))

    def as_headers(self) -> pa.Array:
        """The application's own properties of every row, as `list<struct<key: string, value: binary>>`."""
        if self._names is None:
            counts, flat_names, flat_values = self._flat(_RESERVED)
            offsets, names = _offsets(counts), pa.array(flat_names, pa.string())
        else:
            own = [place for place, name in enumerate(self._names) if name not in _RESERVED]
            offsets, names = _repeated(tuple(self._names[place] for place in own), self._count)
            columns = [self._values[place :: len(self._names)] for place in own]
            flat_values = list(chain.from_iterable(zip(*columns, strict=True)))
        values = pa.array(flat_values, pa.binary())
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([names, values], names=["key", "value"]))

    def _split(self, rows: list[bytes]) -> None:
        text = b"".join([row if not row or row.endswith(_VALUE_END) else row + _VALUE_END for row in rows])
        try:
            text.decode()
        except UnicodeDecodeError:
            return self._split([row.decode(errors="replace").encode() for row in rows])
        separators = text.translate(None, _ALL_BUT_SEPARATORS)
        if separators != b"\x01\x02" * (len(separators) // 2):
            self._dicts = [_parse(row) for row in rows]
            return None
        flat = text.replace(_VALUE_END, _NAME_END).split(_NAME_END)
        names, values = flat[:-1:2], flat[1::2]
        width = len(names) // self._count if self._count else 0
        first = tuple(names[:width])
        if (
            len(set(first)) == width
            and b"" not in first
            and names == list(first) * self._count
            and all(row.count(_NAME_END) == width for row in rows)
        ):
            self._names, self._values = first, values
        else:
            self._dicts = [_parse(row) for row in rows]
        return None

    def _flat(self, without: frozenset[bytes]) -> tuple[list[int], list[bytes], list[bytes]]:
        """How many properties each row has, and the names and values of all of them, but for some names."""
        counts: list[int] = []
        names: list[bytes] = []
        values: list[bytes] = []
        for properties in self._dicts:
            kept = [name for name in properties if name not in without]
            counts.append(len(kept))
            names += kept
            values += [properties[name] for name in kept]
        return counts, names, values


def _parse(row: bytes) -> dict[bytes, bytes]:
    properties: dict[bytes, bytes] = {}
    for pair in row.split(_VALUE_END):
        name, separator, value = pair.partition(_NAME_END)
        if name and separator:
            properties[name] = value
    return properties


def _offsets(counts: list[int]) -> pa.Array:
    return pa.array(accumulate(counts, initial=0), pa.int32())


@lru_cache(maxsize=16)
def _repeated(names: tuple[bytes, ...], count: int) -> tuple[pa.Array, pa.Array]:
    """The offsets and the names of `count` rows that all have the same names."""
    width = len(names)
    return pa.array([width * row for row in range(count + 1)], pa.int32()), pa.array(names * count, pa.string())
