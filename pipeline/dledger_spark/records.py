"""Finder of the parts of stored records: for many records at once, without decoding each of them in Python.

The format is that of `dledger_remoting.record`, whose decoder is the reference. This one is for many records in a row,
on executors that have the standard library and pyarrow only. It walks from record to record by their sizes. Everything
else is arithmetic on whole columns. Uncommon records have an IPv6 host, a topic longer than 127 bytes or a compressed
body. `uncommon` puts buffers with such records into the common layout first.
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
from .uncommon import HEAD_BYTES, MAGIC_V1, MIN_RECORD_BYTES, Notes, common_layout, uncommon_flags
from .wanted import TopicRange

HEAD: Final = 0
BODY: Final = 1
TOPIC: Final = 2
PROPERTIES: Final = 4
PIECES: Final = 6
"""Number of parts of a record.

They are its head, body, topic with the length before it, length of the properties, properties, and the gap before the
next record.
"""

_SIZE: Final = Struct(">i")
_SIZE_PLACE: Final = 0
_MAGIC_PLACE: Final = 4
_SYS_FLAG_PLACE: Final = 36
_BODY_BYTES_PLACE: Final = 84
_INTEGERS: Final = {"i": pa.int32(), "I": pa.uint32(), "q": pa.int64()}


class Heads:
    """The first `HEAD_BYTES` of many records, side by side in a buffer."""

    def __init__(self, data: pa.Buffer, count: int) -> None:
        self._data = memoryview(data)
        self._count = count

    def integers(self, place: int, code: Literal["i", "I", "q"]) -> pa.Array:
        """Return the field at byte `place` of every head: 32 bits, 32 bits without sign, or 64 bits.

        The fields are viewed as integers with a stride, and swapped to the machine's byte order, all of it in C.
        """
        width = 8 if code == "q" else 4
        fields = self._data[place : place + HEAD_BYTES * (self._count - 1) + width].cast(code)[:: HEAD_BYTES // width]
        numbers = array(code)
        numbers.frombytes(fields.tobytes())
        if sys.byteorder == "little":
            numbers.byteswap()
        return to_arrow(numbers)

    def are_common(self, uncommon: int) -> bool:
        """Return True if all records are in the common layout, without any of the sys flags `uncommon`."""
        magics, flags = self.integers(_MAGIC_PLACE, "I"), self.integers(_SYS_FLAG_PLACE, "i")
        uncommon_bits = pc.bit_wise_and(flags, _int(uncommon))
        return pc.all(pc.equal(magics, pa.scalar(MAGIC_V1, pa.uint32()))).as_py() and not pc.max(uncommon_bits).as_py()


@dataclass(slots=True)
class Records:
    """All records of a buffer, in its order; at least one.

    `pieces` has `PIECES` parts for each record, without a gap after the last one. `topics` has the number of its topic.
    `entries` has the term and index of each entry, with the number of records up to its end. IPv6 hosts are zero in the
    buffer, bodies that cannot be decoded are empty: `notes` has them.
    """

    count: int
    pieces: pa.Array
    heads: Heads
    topics: pa.Array
    entries: list[tuple[int, int, int]]
    notes: Notes = field(default_factory=Notes)


class RecordFinder:
    """Finds records and numbers their topics: known topics in their order, all others alike with the next number."""

    def __init__(self, topics: Sequence[TopicRange], *, reads_bodies: bool = True) -> None:
        """Prepare a search for these topics. Compressed bodies are decompressed if `reads_bodies`."""
        self._reads_bodies = reads_bodies
        self._uncommon = uncommon_flags(reads_bodies=reads_bodies)
        self._numbers = {topic.name.encode(): number for number, topic in enumerate(topics)}

    def find(self, data: bytes, spans: Sequence[Span]) -> Iterator[Records]:
        """Yield the records in the spans of `data`, in several parts only if many bytes have to be rewritten.

        Raises `CorruptDataError` at the first record that cannot be read.
        """
        record_starts, entries = _find_record_starts(data, spans)
        if not record_starts:
            return
        heads = _gather_heads(data, record_starts)
        if heads.are_common(self._uncommon):
            yield self._records(data, record_starts, heads, entries)
            return
        for rewritten, parts, notes in common_layout(data, spans, self._numbers, reads_bodies=self._reads_bodies):
            record_starts, entries = _find_record_starts(rewritten, parts)
            if record_starts:
                records = self._records(rewritten, record_starts, _gather_heads(rewritten, record_starts), entries)
                records.notes = notes
                yield records

    def _records(
        self, data: bytes, record_starts: array[int], heads: Heads, entries: list[tuple[int, int, int]]
    ) -> Records:
        """Return the records that start at `record_starts`, all in the common layout. Raises `CorruptDataError`."""
        octets = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
        starts, sizes = to_arrow(record_starts), heads.integers(_SIZE_PLACE, "i")
        bodies = heads.integers(_BODY_BYTES_PLACE, "i")
        max_body_bytes = pc.subtract(sizes, _int(MIN_RECORD_BYTES))
        _check(pc.and_(pc.greater_equal(bodies, _int(0)), pc.less_equal(bodies, max_body_bytes)), record_starts)
        ends = pc.add(starts, sizes)
        body_starts = pc.add(starts, _int(HEAD_BYTES))
        topic_starts = pc.add(body_starts, bodies)
        length_starts = pc.add(pc.add(topic_starts, _int(1)), _take_octets(octets, topic_starts))
        property_starts = pc.add(length_starts, _int(2))
        _check(pc.less_equal(property_starts, ends), record_starts)
        high, low = _take_octets(octets, length_starts), _take_octets(octets, pc.add(length_starts, _int(1)))
        property_bytes = pc.add(pc.multiply(high, _int(256)), low)
        _check(pc.equal(pc.add(property_starts, property_bytes), ends), record_starts)
        part_starts = (starts, body_starts, topic_starts, length_starts, property_starts, ends)
        pieces = _interleave(part_starts, data)
        return Records(len(record_starts), pieces, heads, self._topics(pieces, len(record_starts)), entries)

    def _topics(self, pieces: pa.Array, count: int) -> pa.Array:
        encoded = pc.take(pieces, every(TOPIC, count)).dictionary_encode()
        other_number = len(self._numbers)
        numbers = [self._numbers.get(name[1:], other_number) for name in encoded.dictionary.to_pylist()]
        return pc.take(pa.array(numbers, pa.int32()), encoded.indices)


def _find_record_starts(data: bytes, spans: Sequence[Span]) -> tuple[array[int], list[tuple[int, int, int]]]:
    """Return the starts of the records in the spans, and the entries as `Records` has them.

    Raises `CorruptDataError` if a span is not filled by whole records.
    """
    record_starts: list[int] = []
    entries: list[tuple[int, int, int]] = []
    add, unpack = record_starts.append, _SIZE.unpack_from
    for position, stop, term, log_index in spans:
        while position <= stop - MIN_RECORD_BYTES:
            (size,) = unpack(data, position)
            if size < MIN_RECORD_BYTES:
                raise _damaged(position, f"size {size}")
            add(position)
            position += size
        if position != stop:
            raise _damaged(position, f"records end there, and not at {stop}")
        entries.append((term, log_index, len(record_starts)))
    return array("i", record_starts), entries


def _gather_heads(data: bytes, record_starts: array[int]) -> Heads:
    starts = to_arrow(record_starts)
    pairs = _interleave((starts, pc.add(starts, _int(HEAD_BYTES))), data)
    return Heads(pc.take(pairs, every(0, len(record_starts), 2)).buffers()[2], len(record_starts))


def _interleave(part_starts: tuple[pa.Array, ...], data: bytes) -> pa.Array:
    """Return the parts of `data` that start at the first number of each array, then at the second, and so on."""
    count, width = len(part_starts[0]), len(part_starts)
    places = memoryview(bytearray(4 * width * count)).cast("i")
    for kind, starts in enumerate(part_starts):
        places[kind::width] = memoryview(starts.buffers()[1]).cast("i")[:count]
    return pa.Array.from_buffers(pa.binary(), width * count - 1, [None, pa.py_buffer(places), pa.py_buffer(data)])


def _check(is_sound: pa.Array, record_starts: array[int]) -> None:
    """Raise `CorruptDataError` for the first record for which `is_sound` is false."""
    if not pc.all(is_sound).as_py():
        raise _damaged(
            record_starts[pc.index(is_sound, pa.scalar(value=False)).as_py()], "its size contradicts its fields"
        )


def _take_octets(octets: pa.Array, places: pa.Array) -> pa.Array:
    return pc.take(octets, places).cast(pa.int32())


def to_arrow(numbers: array[int]) -> pa.Array:
    """Return an Arrow array of the same numbers, without a copy."""
    return pa.Array.from_buffers(_INTEGERS[numbers.typecode], len(numbers), [None, pa.py_buffer(numbers)])


def every(kind: int, count: int, width: int = PIECES) -> pa.Array:
    """Return the indexes of one kind of part in `count` records with `width` parts each."""
    return _every(kind, 1 << (count - 1).bit_length(), width).slice(0, count)


@lru_cache(maxsize=64)
def _every(kind: int, count: int, width: int) -> pa.Array:
    return pa.array(range(kind, width * count, width), pa.int32())


@lru_cache(maxsize=16)
def _int(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.int32())


def _damaged(position: int, why: str) -> CorruptDataError:
    return CorruptDataError(f"no record at byte {position} of the answer: {why}")
