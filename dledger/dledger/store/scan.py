"""Scan: walks the bytes of segments and verifies all of them: entries, their chain, and blanks.

Recovery, scrubbing, repair and offline verification share it. Bytes that cannot be read do not verify. One pass costs
two checksums and about 2 µs per entry.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import MutableSequence
from dataclasses import dataclass, field

from dledger.errors import CorruptionError
from dledger.format import BLANK_BYTES, BLANK_MAGIC, HEADER_BYTES, MAX_UNIT_BYTES, parse_entry
from dledger.store.index import UNIT
from dledger.store.unreadable import Readable, salvage
from dledger.types import EntryKind, EntryMeta
from dledger_base.checksum import crc32

BLOCK_BYTES = 2 << 20
"""Number of bytes read at once. Memory of this size is reused; larger blocks would be mapped anew for each read."""
MAX_ENTRY_BYTES = MAX_UNIT_BYTES + (1 << 20)

_HEADER = struct.Struct(">IIQQQIIII")
_U32 = struct.Struct(">I")
_KINDS = frozenset(int(kind) for kind in EntryKind)


@dataclass(slots=True)
class Cursor:
    """State of a scan: the next entry, or a blank, starts at `position`, and the next entry must have `index`.

    `term` and `chain` are those of the previous entry. A chain of None is unknown: the next entry's link is then
    trusted, and all later links are checked.
    """

    position: int
    index: int
    term: int
    chain: int | None
    last_end: int = -1
    """Position where the previous entry ends. It differs from `position` behind a blank."""

    def __post_init__(self) -> None:
        if self.last_end < 0:
            self.last_end = self.position


@dataclass(slots=True)
class Collected:
    """Data that a scan gathers besides verifying."""

    units: list[bytes] = field(default_factory=list)
    """Index unit of each entry."""
    term_runs: list[tuple[int, int]] = field(default_factory=list)
    """(first index, term) of each run of entries of one term."""
    memberships: list[EntryMeta] = field(default_factory=list)
    recent: MutableSequence[tuple[int, int, int, int, int, int, int]] = field(default_factory=lambda: deque(maxlen=0))
    """Fields of `EntryMeta` without `membership`, for the last entries."""


@dataclass(slots=True, frozen=True)
class Fault:
    """Reason why a scan stopped at the cursor's position.

    If the header is intact and only the body is not, `size`, `term` and `chain` are that entry's. Then the scan can go
    on behind it.
    """

    reason: str
    size: int = 0
    term: int = 0
    chain: int = 0


def is_zero(data: bytes) -> bool:
    """Return whether all bytes are 0."""
    return data == bytes(len(data))


def scan_segment(
    file: Readable,
    start: int,
    end: int,
    cursor: Cursor,
    into: Collected,
    *,
    stop: int | None = None,
    budget_bytes: int | None = None,
) -> Fault | None:
    """Verify from the cursor to the end of the segment [start, end), or to `stop` if an entry ends there before.

    Returns None when that end is reached, with the cursor at `end` or `stop`, or when about `budget_bytes` were read.
    Otherwise returns the fault at the cursor's position. An entry that crosses `stop` is a fault.
    """
    limit = end if stop is None else min(stop, end)
    pause = limit if budget_bytes is None else cursor.position + budget_bytes
    while cursor.position < min(limit, pause):
        remaining_bytes = end - cursor.position
        block = salvage(file, min(BLOCK_BYTES, remaining_bytes), cursor.position - start)
        before = cursor.position
        fault = _scan_block(block, end, limit, cursor, into)
        if fault is None and cursor.position == before:
            # No whole entry was found: there is a blank, or an entry larger than the block.
            fault = _scan_blank(file, start, end, block, cursor)
            if fault is None and cursor.position == before:
                size = _U32.unpack_from(block, 4)[0]
                fault = _scan_block(salvage(file, size, before - start), end, limit, cursor, into)
                if fault is None and cursor.position == before:
                    fault = Fault(f"the file ends inside the entry at {before}")
        if fault is not None:
            return fault
    return None


def _scan_block(block: bytes, end: int, limit: int, cursor: Cursor, into: Collected) -> Fault | None:
    """Verify the whole entries at the head of a block. None at a blank, at the limit, or if bytes are lacking."""
    position, index, term, chain = cursor.position, cursor.index, cursor.term, cursor.chain
    unpack, pack_unit, pack_u32 = _HEADER.unpack_from, UNIT.pack, _U32.pack
    add_unit, add_recent = into.units.append, into.recent.append
    view = memoryview(block)
    offset, filled = 0, len(block)
    fault: Fault | None = None
    while position < limit and filled - offset >= HEADER_BYTES:
        magic, size, entry_index, entry_term, entry_position, channel, entry_chain, body_crc, length = unpack(
            block, offset
        )
        if magic == BLANK_MAGIC:
            break
        entry_end = position + size
        if (
            magic not in _KINDS
            or size != HEADER_BYTES + length
            or size > MAX_ENTRY_BYTES
            or channel > length
            or entry_position != position
            or entry_index != index
            or entry_term < term
            or entry_end > limit
            or 0 < end - entry_end < BLANK_BYTES
        ):
            fault = Fault(
                f"no valid entry {index} at {position}: magic {magic:#x}, size {size}, index {entry_index}, "
                f"term {entry_term} after {term}, position {entry_position}, channel {channel}, body length {length}"
            )
            break
        if chain is not None:
            expected = crc32(
                block[offset + 40 : offset + 48], crc32(block[offset : offset + 36], crc32(pack_u32(chain)))
            )
            if expected != entry_chain:
                fault = Fault(f"entry {index} at {position}: chain crc {entry_chain:#010x}, expected {expected:#010x}")
                break
        if filled - offset < size:
            break
        found = crc32(view[offset + HEADER_BYTES : offset + size])
        if found != body_crc:
            reason = f"entry {index} at {position}: body crc {body_crc:#010x}, the body's is {found:#010x}"
            fault = Fault(reason, size, entry_term, entry_chain) if chain is not None else Fault(reason)
            break
        if magic == EntryKind.MEMBERSHIP:
            try:
                meta = parse_entry(block, offset, filled, None)
            except CorruptionError as error:
                fault = Fault(str(error))
                break
            if meta is not None:
                into.memberships.append(meta)
        if entry_term != term or not into.term_runs:
            into.term_runs.append((index, entry_term))
        add_unit(pack_unit(magic, position, size, index, entry_term))
        add_recent((index, entry_term, position, size, magic, channel, entry_chain))
        position, index, term, chain = entry_end, index + 1, entry_term, entry_chain
        offset += size
    if offset:
        cursor.position = cursor.last_end = position
        cursor.index, cursor.term, cursor.chain = index, term, chain
    return fault


def _scan_blank(file: Readable, start: int, end: int, block: bytes, cursor: Cursor) -> Fault | None:
    """Verify the blank at the cursor, which begins with `block`, and step over it.

    The cursor stays if the beginning of an entry is there instead.
    """
    position = cursor.position
    remaining_bytes = end - position
    if len(block) < BLANK_BYTES:
        return Fault(f"the file ends at {position + len(block)}, inside an entry or a blank")
    magic, size = _U32.unpack_from(block, 0)[0], _U32.unpack_from(block, 4)[0]
    if magic != BLANK_MAGIC:
        if len(block) < HEADER_BYTES or size <= len(block):
            return Fault(f"neither an entry nor a blank at {position}: magic {magic:#x}, size {size}")
        return None
    if size != remaining_bytes:
        return Fault(f"the blank at {position} claims {size} bytes, {remaining_bytes} are left")
    if not is_zero(block[BLANK_BYTES:]):
        return Fault(f"the blank at {position} is not zero throughout")
    checked_bytes = len(block)
    while checked_bytes < remaining_bytes:
        block_read = salvage(file, min(BLOCK_BYTES, remaining_bytes - checked_bytes), position + checked_bytes - start)
        if not block_read or not is_zero(block_read):
            return Fault(f"the blank at {position} is not zero throughout")
        checked_bytes += len(block_read)
    cursor.position = end
    return None


def header_at(file: Readable, start: int, position: int) -> EntryMeta | None:
    """Return the entry whose header is at `position`, with its bytes unverified; None if there is no plausible header.

    The body of a membership entry is read as well, and must verify.
    """
    raw = salvage(file, HEADER_BYTES, position - start)
    if len(raw) < HEADER_BYTES:
        return None
    magic, size, index, term, found, channel, chain, _, length = _HEADER.unpack(raw)
    if magic not in _KINDS or size != HEADER_BYTES + length or found != position or size > MAX_ENTRY_BYTES:
        return None
    if magic == EntryKind.MEMBERSHIP:
        try:
            return parse_entry(salvage(file, size, position - start), 0, size, None)
        except CorruptionError:
            return None
    return EntryMeta(index, term, position, size, magic, channel, chain)


def headers_in(buffer: bytes) -> list[EntryMeta]:
    """Return the whole entries at the head of a buffer by their headers. Only continuity is verified.

    Stops at anything else. The body of a membership entry must verify.
    """
    metas: list[EntryMeta] = []
    offset, filled = 0, len(buffer)
    while filled - offset >= HEADER_BYTES:
        magic, size, index, term, position, channel, chain, _, length = _HEADER.unpack_from(buffer, offset)
        if magic not in _KINDS or size != HEADER_BYTES + length or filled - offset < size:
            break
        if metas and (index != metas[-1].index + 1 or position != metas[-1].end):
            break
        if magic == EntryKind.MEMBERSHIP:
            meta = parse_entry(buffer, offset, filled, None)
            if meta is None:
                break
        else:
            meta = EntryMeta(index, term, position, size, magic, channel, chain)
        metas.append(meta)
        offset += size
    return metas
