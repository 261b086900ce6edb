"""The second stage of a filter in SQL92: of the records that a read of a queue gave, those whose properties match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dledger_broker.views.reading import MAX_SCANNED_UNITS, GetResult, ReadStatus
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.record import iter_properties

MAX_EXAMINED_BYTES: Final = 1 << 20
"""Record bytes that one look at a queue reads, unless a single record is larger."""
_WORK: Final = 100_000
_MIN_EXAMINED: Final = 32


def max_examined(wanted: SqlFilter) -> int:
    """Records that one look examines: fewer of those that a long expression is asked about, which takes longer."""
    return min(MAX_SCANNED_UNITS, max(_MIN_EXAMINED, _WORK // len(wanted.expression)))


def choose(
    read: GetResult, pieces: Iterable[bytes], asked: int, wanted: SqlFilter, max_messages: int, max_bytes: int
) -> tuple[GetResult, list[bytes]]:
    """What to answer of the records that were read from offset `asked` on, and its bytes.

    At least one record if one matches. The result's next offset is behind the last record that was examined.
    """
    chosen: list[bytes] = []
    count = total = 0
    offset = asked
    for piece, start, size, properties in _records(pieces):
        if wanted.matches_text(properties):
            if count and (count >= max_messages or total + size > max_bytes):
                break
            chosen.append(piece[start : start + size])
            count += 1
            total += size
        offset += 1
    status = ReadStatus.FOUND if count else ReadStatus.NO_MATCHED_MESSAGE
    return GetResult(status, offset, read.min_offset, read.max_offset, [], count, total), chosen


def _records(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, int, int, bytes]]:
    """(piece, start, size, property text) of each record."""
    for piece in pieces:
        for start, size, properties in iter_properties(piece):
            yield piece, start, size, properties
