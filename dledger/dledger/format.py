"""Byte format of the log.

An entry is a 48-byte header (big-endian) and a body:

    offset  size  field
         0     4  magic         1 group, 2 no-op, 3 membership
         4     4  size          48 + body length
         8     8  index         from 0
        16     8  term          from 1
        24     8  position      byte position of this header in the log
        32     4  channel       length of the state-command section at the end of the body
        36     4  chain crc     crc32(previous chain crc as 4 bytes + header bytes 0-35 + header bytes 40-47)
        40     4  body crc      crc32(body)
        44     4  body length

The chain crc of the entry before the first is 0. An entry never crosses a segment. The rest of a segment is a blank:
magic -1, size = all bytes left including these 8, then zeros. A blank has no index and is not part of the chain. Blanks
are at least 8 bytes, so an entry fits a segment only if it leaves exactly 0 or at least 8 bytes.

The layout is DLedger's (its `DLedgerEntryCoder`), and uses the fields that DLedger leaves zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from dledger.errors import CorruptionError
from dledger.types import EntryKind, EntryMeta, Membership
from dledger_base.checksum import crc32

HEADER_BYTES = 48
BLANK_BYTES = 8
BLANK_MAGIC = 0xFFFFFFFF
MAX_ENTRY_BODY_BYTES = 1 << 20
"""Maximum size of a sealed entry's body in bytes, unless a single unit is larger."""
MAX_UNIT_BYTES = 8 << 20
"""Maximum size of a unit in bytes. A message of 4 MiB with its properties fits."""

_HEADER = struct.Struct(">IIQQQIIII")
_TAIL = struct.Struct(">II")
_U32 = struct.Struct(">I")
_BLANK = struct.Struct(">II")
_COMMAND = struct.Struct(">HI")
COMMAND_HEADER_BYTES = _COMMAND.size
_KINDS = frozenset(int(kind) for kind in EntryKind)
_decode_membership = msgspec.msgpack.Decoder(Membership).decode


def encode_membership(membership: Membership) -> bytes:
    """Return the body of a membership entry: MessagePack of `Membership`."""
    return msgspec.msgpack.encode(membership)


def seal(
    entry: bytearray, kind: int, index: int, term: int, position: int, channel: int, previous_chain: int
) -> EntryMeta:
    """Write the header into the first 48 bytes of `entry`, which the body follows, and return its meta.

    A membership entry's meta lacks its membership. The caller adds it.
    """
    size = len(entry)
    _HEADER.pack_into(entry, 0, kind, size, index, term, position, channel, 0, 0, size - HEADER_BYTES)
    view = memoryview(entry)
    body_crc = crc32(view[HEADER_BYTES:])
    _TAIL.pack_into(entry, 40, body_crc, size - HEADER_BYTES)
    chain = link(view, 0, previous_chain)
    _U32.pack_into(entry, 36, chain)
    return EntryMeta(index, term, position, size, kind, channel, chain)


def link(buffer: bytes | bytearray | memoryview, offset: int, previous_chain: int) -> int:
    """Return the chain crc that the header at `offset` must have after `previous_chain`."""
    view = memoryview(buffer)
    prefix = crc32(view[offset : offset + 36], crc32(_U32.pack(previous_chain)))
    return crc32(view[offset + 40 : offset + 48], prefix)


def blank(left: int) -> bytes:
    """Return the blank that fills the last `left` bytes of a segment (at least 8)."""
    return _BLANK.pack(BLANK_MAGIC, left) + bytes(left - BLANK_BYTES)


def parse_entry(
    buffer: bytes | bytearray | memoryview, offset: int, end: int, previous_chain: int | None
) -> EntryMeta | None:
    """Verify the entry at `offset` of a buffer that is filled up to `end`, and return its meta.

    Returns None if fewer bytes are there than the entry needs. `previous_chain` None skips the chain check. Raises
    `CorruptionError` if the bytes are not a valid entry.
    """
    if end - offset < HEADER_BYTES:
        return None
    magic, size, index, term, position, channel, chain, body_crc, length = _HEADER.unpack_from(buffer, offset)
    if magic not in _KINDS or size != HEADER_BYTES + length or channel > length or size > MAX_UNIT_BYTES + (1 << 20):
        raise CorruptionError(f"no entry header: magic {magic:#x}, size {size}, body length {length}")
    if end - offset < size:
        return None
    view = memoryview(buffer)
    if previous_chain is not None:
        expected = link(view, offset, previous_chain)
        if expected != chain:
            raise CorruptionError(f"entry {index} at {position}: chain crc {chain:#010x}, expected {expected:#010x}")
    body = view[offset + HEADER_BYTES : offset + size]
    if crc32(body) != body_crc:
        raise CorruptionError(f"entry {index} at {position}: body crc {crc32(body):#010x}, expected {body_crc:#010x}")
    membership = None
    if magic == EntryKind.MEMBERSHIP:
        try:
            membership = _decode_membership(body)
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"entry {index} at {position}: no membership body: {error}") from error
    return EntryMeta(index, term, position, size, magic, channel, chain, membership)


def parse_run(buffer: bytes | bytearray | memoryview, previous_chain: int | None) -> list[EntryMeta]:
    """Verify a run of whole entries, each of which continues its predecessor's index, position and chain.

    Returns their metas. Raises `CorruptionError` if a byte is left over or does not verify.
    """
    metas: list[EntryMeta] = []
    offset, end = 0, len(buffer)
    while offset < end:
        meta = parse_entry(buffer, offset, end, previous_chain)
        if meta is None:
            raise CorruptionError(f"a run of {end} bytes ends inside an entry at byte {offset}")
        if metas and (meta.index != metas[-1].index + 1 or meta.position != metas[-1].end):
            raise CorruptionError(f"entry {meta.index} at {meta.position} does not continue {metas[-1]}")
        metas.append(meta)
        previous_chain = meta.chain_crc
        offset += meta.size
    return metas


def blank_length(buffer: bytes | bytearray | memoryview, offset: int, end: int) -> int | None:
    """Return the length that a blank at `offset` claims, or None if there is none."""
    if end - offset < BLANK_BYTES:
        return None
    magic, size = _BLANK.unpack_from(buffer, offset)
    return size if magic == BLANK_MAGIC else None


def iter_commands(section: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the commands of an entry's state-command section, in order.

    A command is: kind (2 bytes), payload length (4 bytes), payload. Kinds below 16 belong to the log itself. Raises
    `CorruptionError` on a truncated section.
    """
    view = memoryview(section)
    offset, end = 0, len(view)
    while offset < end:
        if end - offset < 6:
            raise CorruptionError("a state-command section ends inside a command header")
        kind, length = _COMMAND.unpack_from(view, offset)
        offset += 6
        if end - offset < length:
            raise CorruptionError(f"command kind {kind} claims {length} bytes, {end - offset} are left")
        yield kind, view[offset : offset + length]
        offset += length


def only_kind(section: bytes | memoryview) -> int | None:
    """Return the kind of the only command in a section; None if there are several or none, or if it does not fit.

    Most entries with commands have exactly one. A caller that knows its kind can skip the steps of `iter_commands`.
    """
    if len(section) < COMMAND_HEADER_BYTES:
        return None
    kind: int
    kind, length = _COMMAND.unpack_from(section)
    return kind if COMMAND_HEADER_BYTES + length == len(section) else None


def encode_command(kind: int, payload: bytes) -> bytes:
    """Encode one command of a state-command section (see `iter_commands`)."""
    return _COMMAND.pack(kind, len(payload)) + payload
