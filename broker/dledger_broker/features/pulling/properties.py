"""Second stage of filters by SQL92 and by class: selects the records that match from a read of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from dledger_broker.views.reading import MAX_SCANNED_UNITS, GetResult, ReadStatus
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import ClassFilter
from dledger_remoting.record import iter_properties

MAX_EXAMINED_BYTES: Final = 1 << 20
"""Maximum number of record bytes that one pass over a queue reads, unless a single record is larger."""
_WORK: Final = 100_000
_MIN_EXAMINED: Final = 32


class Matcher(Protocol):
    """Judge of whether records match. It gets them one after another."""

    def matches_text(self, properties: bytes) -> bool:
        """Return whether the record with this property text matches."""


def max_examined(wanted: SqlFilter | ClassFilter) -> int:
    """Return the maximum number of records that one pass examines.

    Long expressions take longer, so the number is lower.
    """
    if isinstance(wanted, ClassFilter):
        return MAX_SCANNED_UNITS
    return min(MAX_SCANNED_UNITS, max(_MIN_EXAMINED, _WORK // len(wanted.expression)))


def choose(
    read: GetResult, pieces: Iterable[bytes], asked: int, wanted: Matcher, max_messages: int, max_bytes: int
) -> tuple[GetResult, list[bytes]]:
    """Return the result and the bytes to answer with, from the records that were read from offset `asked` on.

    If any record matches, the answer has at least one record. The result's next offset is behind the last record
    examined.
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
    """Yield (piece, start, size, property text) of each record."""
    for piece in pieces:
        for start, size, properties in iter_properties(piece):
            yield piece, start, size, properties
