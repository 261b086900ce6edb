"""Salvage: reads the rest of a log in any state: whole, torn, rotten, or written to meanwhile. Changes nothing.

Every entry whose bytes verify is found. Behind bytes that do not verify, the next header is searched for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from dledger.errors import CorruptionError
from dledger.format import HEADER_BYTES, parse_entry
from dledger.store.commit import SavedCommit
from dledger.store.disk import Disk, File
from dledger.store.mark import DurableMark
from dledger.store.scan import header_at, is_zero
from dledger.store.segments import DIRECTORY, list_positions, segment_path
from dledger.store.unreadable import salvage
from dledger.types import EntryMeta

SEARCH_BYTES: Final = 1 << 20
"""Number of bytes searched for a header at once."""
_MAGIC: Final = re.compile(rb"\0\0\0[\1\2\3]")


class SalvagedEntry(NamedTuple):
    """One entry. `records` are its bytes before the commands. `committed` is True if the directory proves that."""

    meta: EntryMeta
    records: bytes
    committed: bool


class Gap(NamedTuple):
    """Bytes of the log, from `start` to below `end`, that are neither an entry nor a blank."""

    start: int
    end: int


def salvage_entries(disk: Disk, segment_bytes: int) -> Iterator[SalvagedEntry | Gap]:
    """Yield the log of a directory in order. Blocks; raises `OSError`, but not for unreadable sectors.

    A segment that the directory's node trims meanwhile is left out.
    """
    commit, mark = SavedCommit.read(disk), DurableMark.read(disk)
    known_index = max(commit, -1 if mark is None else mark.index)
    last: EntryMeta | None = None
    for start in list_positions(disk, DIRECTORY):
        try:
            file = disk.open(segment_path(start))
        except FileNotFoundError:
            continue
        try:
            for found in _segment(file, start, start + segment_bytes):
                if isinstance(found, Gap):
                    yield found
                    continue
                meta, raw = found
                if last is not None and meta.index <= last.index and meta.index > known_index:
                    return  # behind the end are leftovers of the log from before it was cut
                last = meta
                yield SalvagedEntry(meta, raw[HEADER_BYTES : meta.size - meta.channel], meta.index <= commit)
        finally:
            file.close()


def _segment(file: File, start: int, end: int) -> Iterator[tuple[EntryMeta, bytes] | Gap]:
    """Yield the entries and gaps of one segment."""
    position, end = start, min(end, start + file.size())
    gap_start = -1
    while position < end:
        meta = header_at(file, start, position)
        raw = None if meta is None else _verified(file, start, meta)
        if meta is not None and raw is not None:
            if gap_start >= 0:
                yield Gap(gap_start, position)
                gap_start = -1
            yield meta, raw
            position = meta.end
            continue
        if gap_start < 0:
            gap_start = position
        found = _next_header(file, start, position + 1, end)
        if found < 0:
            break
        position = found
    if 0 <= gap_start < end and not _is_unused(file, start, gap_start, end):
        yield Gap(gap_start, end)


def _verified(file: File, start: int, meta: EntryMeta) -> bytes | None:
    raw = salvage(file, meta.size, meta.position - start)
    try:
        return raw if parse_entry(raw, 0, len(raw), None) is not None else None
    except CorruptionError:
        return None


def _next_header(file: File, start: int, position: int, end: int) -> int:
    """Return the position of the next header that contains its own position; -1 if there is none."""
    while position < end:
        block = salvage(file, min(SEARCH_BYTES + HEADER_BYTES, end - position), position - start)
        for match in _MAGIC.finditer(block):
            at = position + match.start()
            if match.start() < SEARCH_BYTES and block[match.start() + 24 : match.start() + 32] == at.to_bytes(8, "big"):
                return at
        position += SEARCH_BYTES
    return -1


def _is_unused(file: File, start: int, position: int, end: int) -> bool:
    """Return whether the rest holds only a blank, or nothing: zeros after the 8 bytes of a blank's head."""
    head = salvage(file, min(8, end - position), position - start)
    if head[:4] not in (b"\xff\xff\xff\xff", b"\0\0\0\0"):
        return False
    position += len(head)
    while position < end:
        block = salvage(file, min(SEARCH_BYTES, end - position), position - start)
        if not block:
            return True
        if not is_zero(block):
            return False
        position += len(block)
    return True
