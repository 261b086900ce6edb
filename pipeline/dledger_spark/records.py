"""Finder of the pieces of stored records: for many records at once, without a Python object for each.

The format is that of `dledger_remoting.record`, whose decoder is the reference; this one is for many records in a row,
on executors that have the standard library and pyarrow only. Only the way from record to record is walked, by their
sizes; everything else is arithmetic on whole columns. Buffers with records that are not like most (an IPv6 host, a
topic longer than 127 bytes, a compressed body) are put into the common layout first, by `uncommon`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from .entries import Span
from .errors import CorruptDataError
from .uncommon import HEAD_BYTES, MAGIC_V1, MIN_RECORD_BYTES, UNCOMMON_FLAGS, Notes, common_layout
from .wanted import TopicRange

HEAD: Final = 0
BODY: Final = 1
TOPIC: Final = 2
PROPERTIES: Final = 4
PIECES: Final = 6
"""A record's pieces: head, body, topic with its length before it, length of the properties, properties, and what lies
before the next record."""

_SIZE: Final = Struct(">i")
_SIZE_PLACE: Final = 0
_MAGIC_PLACE: Final = 4
_SYS_FLAG_PLACE: Final = 36
_BODY_BYTES_PLACE: Final = 84
_INTEGERS: Final = {"i": pa.int32(), "I": pa.uint32(), "q": pa.int64()}


class Heads:
    """The first `HEAD_BYTES` of many records, one behind the other in a buffer."""

    def __init__(self, data: pa.Buffer, count: int) -> None:
        self._data = memoryview(data)
        self._count = count

    def integers(self, place: int, code: Literal["i", "I", "q"]) -> pa.Array:
        """The field at byte `place` of every head: 32 bits, 32 bits without sign, or 64 bits.

        The fields are viewed as integers with a stride, and swapped to the machine's byte order, all of it in C.
        """
        width = 8 if code == "q" else 4
        fields = self._data[place : place + HEAD_BYTES * (self._count - 1) + width].cast(code)[:: HEAD_BYTES // width]
        numbers = array(code)
        numbers.frombytes(fields.tobytes())
        if sys.byteorder == "little":
            numbers.byteswap()
        return to_arrow(numbers)

    def are_common(self) -> bool:
        """Whether all records are in the common layout."""
        magics, flags = self.integers(_MAGIC_PLACE, "I"), self.integers(_SYS_FLAG_PLACE, "i")
        uncommon = pc.bit_wise_and(flags, _int(UNCOMMON_FLAGS))
        return pc.all(pc.equal(magics, pa.scalar(MAGIC_V1, pa.uint32()))).as_py() and not pc.max(uncommon).as_py()


@dataclass(slots=True)
class Records:
    """All records of a buffer, in its order; at least one.

    `pieces` has `PIECES` items for each, `topics` the number of its topic. `entries` are the runs (term, index,
    records so far). Where `notes` has a host or says why a body cannot be read, it is zero or empty in the buffer.
    """

    count: int
    pieces: pa.Array
    heads: Heads
    topics: pa.Array
    entries: list[tuple[int, int, int]]
    notes: Notes = field(default_factory=Notes)


class RecordFinder:
    """Finds records and numbers their topics: those that it knows in their order, all others with the next number."""

    def __init__(self, topics: Sequence[TopicRange]) -> None:
        self._numbers = {topic.name.encode(): number for number, topic in enumerate(topics)}

    def find(self, data: bytes, spans: Sequence[Span]) -> Iterator[Records]:
        """The records in the spans of `data`, in one piece unless there is much to decompress.

        Raises `CorruptDataError` at the first record that cannot be read.
        """
        places, entries = _walk(data, spans)
        if not places:
            return
        heads = _heads(data, places)
        if heads.are_common():
            yield self._records(data, places, heads, entries)
            return
        for rewritten, parts, notes in common_layout(data, spans, self._numbers):
            places, entries = _walk(rewritten, parts)
            if places:
                records = self._records(rewritten, places, _heads(rewritten, places), entries)
                records.notes = notes
                yield records

    def _records(self, data: bytes, places: array[int], heads: Heads, entries: list[tuple[int, int, int]]) -> Records:
        """The records that start at `places`, all in the common layout."""
        octets = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
        starts, sizes = to_arrow(places), heads.integers(_SIZE_PLACE, "i")
        bodies = heads.integers(_BODY_BYTES_PLACE, "i")
        most = pc.subtract(sizes, _int(MIN_RECORD_BYTES))
        _check(pc.and_(pc.greater_equal(bodies, _int(0)), pc.less_equal(bodies, most)), places)
        ends = pc.add(starts, sizes)
        body_starts = pc.add(starts, _int(HEAD_BYTES))
        topic_starts = pc.add(body_starts, bodies)
        length_starts = pc.add(pc.add(topic_starts, _int(1)), _taken(octets, topic_starts))
        property_starts = pc.add(length_starts, _int(2))
        _check(pc.less_equal(property_starts, ends), places)
        high, low = _taken(octets, length_starts), _taken(octets, pc.add(length_starts, _int(1)))
        property_bytes = pc.add(pc.multiply(high, _int(256)), low)
        _check(pc.equal(pc.add(property_starts, property_bytes), ends), places)
        kinds = (starts, body_starts, topic_starts, length_starts, property_starts, ends)
        pieces = _interleaved(kinds, data)
        return Records(len(places), pieces, heads, self._topics(pieces, len(places)), entries)

    def _topics(self, pieces: pa.Array, count: int) -> pa.Array:
        encoded = pc.take(pieces, every(TOPIC, count)).dictionary_encode()
        other = len(self._numbers)
        numbers = [self._numbers.get(name[1:], other) for name in encoded.dictionary.to_pylist()]
        return pc.take(pa.array(numbers, pa.int32()), encoded.indices)


def _walk(data: bytes, spans: Sequence[Span]) -> tuple[array[int], list[tuple[int, int, int]]]:
    """Where the records in the spans start, and the runs of them that came in one entry."""
    places: list[int] = []
    entries: list[tuple[int, int, int]] = []
    add, unpack = places.append, _SIZE.unpack_from
    for position, stop, term, log_index in spans:
        while position <= stop - MIN_RECORD_BYTES:
            (size,) = unpack(data, position)
            if size < MIN_RECORD_BYTES:
                raise _damaged(position, f"size {size}")
            add(position)
            position += size
        if position != stop:
            raise _damaged(position, f"records end there, and not at {stop}")
        entries.append((term, log_index, len(places)))
    return array("i", places), entries


def _heads(data: bytes, places: array[int]) -> Heads:
    starts = to_arrow(places)
    pairs = _interleaved((starts, pc.add(starts, _int(HEAD_BYTES))), data)
    return Heads(pc.take(pairs, every(0, len(places), 2)).buffers()[2], len(places))


def _interleaved(kinds: tuple[pa.Array, ...], data: bytes) -> pa.Array:
    """The pieces of `data` that start at the first numbers of all arrays, then at their second ones, and so on."""
    count, width = len(kinds[0]), len(kinds)
    places = memoryview(bytearray(4 * width * count)).cast("i")
    for kind, starts in enumerate(kinds):
        places[kind::width] = memoryview(starts.buffers()[1]).cast("i")[:count]
    return pa.Array.from_buffers(pa.binary(), width * count - 1, [None, pa.py_buffer(places), pa.py_buffer(data)])


def _check(holds: pa.Array, places: array[int]) -> None:
    """Raises `CorruptDataError` for the first record for which something does not hold."""
    if not pc.all(holds).as_py():
        raise _damaged(places[pc.index(holds, pa.scalar(value=False)).as_py()], "its size contradicts its fields")


def _taken(octets: pa.Array, places: pa.Array) -> pa.Array:
    return pc.take(octets, places).cast(pa.int32())


def to_arrow(numbers: array[int]) -> pa.Array:
    """The same numbers, not copied."""
    return pa.Array.from_buffers(_INTEGERS[numbers.typecode], len(numbers), [None, pa.py_buffer(numbers)])


def every(kind: int, count: int, width: int = PIECES) -> pa.Array:
    """Where the pieces of one kind are among those of `count` records, which have `width` each."""
    return _every(kind, 1 << (count - 1).bit_length(), width).slice(0, count)


@lru_cache(maxsize=64)
def _every(kind: int, count: int, width: int) -> pa.Array:
    return pa.array(range(kind, width * count, width), pa.int32())


@lru_cache(maxsize=16)
def _int(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.int32())


def _damaged(position: int, why: str) -> CorruptDataError:
    return CorruptDataError(f"no record at byte {position} of the answer: {why}")
