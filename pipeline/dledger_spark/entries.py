"""Raw entries of the log: every byte is verified before a record is taken out of it.

The layout is in `docs/reference/file-format.md`, "Entry". It imports the standard library only, and a faster CRC where
one is installed.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from dledger_remoting.checksum import crc32

from .errors import CorruptDataError

HEADER_BYTES: Final = 48
GROUP_MAGIC: Final = 1
_MAGICS: Final = frozenset({1, 2, 3})
_HEADER: Final = Struct(">iiqqqIIII")


class Span(NamedTuple):
    """`data[start:stop]`, which holds records back to back, and the log entry that contained them, if recorded."""

    start: int
    stop: int
    term: int = 0
    log_index: int = 0


def verify_entries(data: bytes, position: int, index: int, chain: int) -> tuple[list[Span], int]:
    """Return the entries of `data` and the last entry's chain crc. It begins at `position` with entry `index`.

    `chain` is the chain crc of the entry before. Raises `CorruptDataError` at the first byte that does not verify.
    """
    entries: list[Span] = []
    view = memoryview(data)
    place = 0
    while place < len(data):
        if len(data) - place < HEADER_BYTES:
            raise _damaged(position + place, f"only {len(data) - place} bytes are left")
        magic, size, found_index, term, found_position, channel, found_chain, body_crc, body_bytes = (
            _HEADER.unpack_from(data, place)
        )
        body_start = place + HEADER_BYTES
        if magic not in _MAGICS or size != HEADER_BYTES + body_bytes or channel > body_bytes:
            raise _damaged(position + place, f"magic {magic}, size {size}, body length {body_bytes}, channel {channel}")
        if place + size > len(data):
            raise _damaged(position + place, f"size {size}, {len(data) - place} bytes are left")
        if found_position != position + place or found_index != index:
            raise _damaged(position + place, f"it says position {found_position}, index {found_index}, not {index}")
        head = data[place : place + 36] + data[place + 40 : body_start]
        chain = crc32(head, crc32(chain.to_bytes(4, "big")))
        if chain != found_chain:
            raise _damaged(position + place, f"chain crc {found_chain:08x}, {chain:08x} expected")
        if crc32(view[body_start : place + size]) != body_crc:
            raise _damaged(position + place, f"the body does not have its crc {body_crc:08x}")
        stop = place + size - channel if magic == GROUP_MAGIC else body_start
        entries.append(Span(body_start, stop, term, index))
        index += 1
        place += size
    return entries, chain


def _damaged(position: int, why: str) -> CorruptDataError:
    return CorruptDataError(f"no entry at position {position}: {why}")
