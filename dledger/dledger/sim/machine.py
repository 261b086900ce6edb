"""The state machine of the simulations: registers, and a digest of everything ever applied.

A unit is: key (1 byte), operation number (8 bytes), padding.  Several units of one entry stand back to back behind their
lengths (4 bytes each).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dledger.checksum import crc32
from dledger.statemachine import CommittedEntry, Leadership
from dledger.types import SnapshotMeta

_UNIT = struct.Struct(">IBQ")
UNIT_BYTES = _UNIT.size
CHUNK_BYTES = 256


def encode_unit(key: int, operation: int, padding: int) -> bytes:
    """A unit's bytes."""
    return _UNIT.pack(UNIT_BYTES + padding, key, operation) + bytes(padding)


class Written(NamedTuple):
    """The newest write of a register."""

    operation: int
    position: int


class Pending:
    """The context of a client's append."""

    __slots__ = ("operation", "position", "resolve")

    def __init__(self, operation: int, resolve: Callable[[str, int], None]) -> None:
        self.operation = operation
        self.position = -1
        self.resolve = resolve


class RegisterMachine:
    """`applied(entry, units)` is told every entry as it is applied, for the invariants."""

    def __init__(self, applied: Callable[[CommittedEntry, list[tuple[int, int, int]]], None]) -> None:
        self._applied = applied
        self._chain = 0
        self.registers: dict[int, Written] = {}
        self.leadership: Leadership | None = None

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            units: list[tuple[int, int, int]] = []
            offset, records = 0, entry.records
            while offset < len(records):
                size, key, operation = _UNIT.unpack_from(records, offset)
                units.append((key, operation, entry.records_position + offset))
                offset += size
            for key, operation, position in units:
                self.registers[key] = Written(operation, position)
            self._chain = crc32(records, crc32(entry.commands, self._chain))
            self._applied(entry, units)
            for context in entry.contexts:
                if isinstance(context, Pending):
                    context.resolve("ok", context.position)

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        raise AssertionError("this machine has no views to rebuild")

    def dropped(self, contexts: Sequence[object]) -> None:
        for context in contexts:
            if isinstance(context, Pending):
                context.resolve("info", -1)

    def on_leadership(self, leadership: Leadership) -> None:
        self.leadership = leadership

    def snapshot(self) -> Iterator[bytes]:
        encoded = msgspec.msgpack.encode((self._chain, list(self.registers.items())))
        return iter([encoded[at : at + CHUNK_BYTES] for at in range(0, len(encoded), CHUNK_BYTES)])

    def restore(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> int:
        if meta is None:
            self._chain = 0
            self.registers = {}
            return 0
        chain, registers = msgspec.msgpack.decode(
            b"".join(chunks), type=tuple[int, list[tuple[int, tuple[int, int]]]]
        )
        self._chain = chain
        self.registers = {key: Written(*written) for key, written in registers}
        return meta.position

    def digest(self) -> int:
        return self._chain
