"""State machine of the simulations: registers, and a digest of everything that was ever applied.

A unit is: its length (4 bytes), key (1 byte), operation number (8 bytes), padding. Several units of an entry lie back
to back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from dledger.errors import LogFullError
from dledger.format import iter_commands
from dledger.replica.snapshots.marks import FIRST_SERVICE_KIND
from dledger.statemachine import CommittedEntry, Leadership, Restore
from dledger.types import SnapshotMeta
from dledger_base.checksum import crc32
from dledger_sim.log.invariants import Applied

_UNIT = struct.Struct(">IBQ")
UNIT_BYTES = _UNIT.size
CHUNK_BYTES = 16 << 10


def encode_unit(key: int, operation: int, padding: int) -> bytes:
    """Return a unit's bytes."""
    return _UNIT.pack(UNIT_BYTES + padding, key, operation) + bytes(padding)


class Written(NamedTuple):
    """Newest write of a register."""

    operation: int
    position: int


class Pending:
    """Context of a client's append. `resolve` gets `ok` with the position, `info` with -1, or `fail` with -1."""

    __slots__ = ("operation", "position", "resolve")

    def __init__(self, operation: int, resolve: Callable[[str, int], None]) -> None:
        self.operation = operation
        self.position = -1
        self.resolve = resolve


class _Snapshot(msgspec.Struct, array_like=True):
    chain: int
    registers: list[tuple[int, int, int]]
    padding: bytes


class RegisterMachine:
    """State machine with registers.

    `applied` is called for every applied entry; `padding_bytes` make snapshots large.
    """

    def __init__(self, padding_bytes: int, applied: Applied) -> None:
        self._applied = applied
        self._padding = bytes(padding_bytes)
        self._chain = 0
        self.registers: dict[int, Written] = {}
        self.leadership: Leadership | None = None

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply entries: set the registers, continue the digest, and resolve the contexts."""
        for entry in entries:
            units: list[tuple[int, int, int]] = []
            offset, records = 0, entry.records
            while offset < len(records):
                size, key, operation = _UNIT.unpack_from(records, offset)
                units.append((key, operation, entry.records_position + offset))
                offset += size
            for key, operation, position in units:
                self.registers[key] = Written(operation, position)
            self._chain = crc32(records, self._chain)
            for kind, payload in iter_commands(entry.commands):
                if kind >= FIRST_SERVICE_KIND:
                    self._chain = crc32(payload, self._chain)
            self._applied(entry, units, self._chain)
            for context in entry.contexts:
                if isinstance(context, Pending):
                    context.resolve("ok", context.position)

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """Fail: this machine has no views, so it never asks for a rebuild."""
        raise AssertionError(f"this machine asked for no rebuild, but got {len(entries)} entries")

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """Resolve the contexts of dropped operations: `fail` if the log was full, else `info`."""
        for context in contexts:
            if isinstance(context, Pending):
                context.resolve("info" if full is None else "fail", -1)

    def on_leadership(self, leadership: Leadership) -> None:
        """Note the present leadership."""
        self.leadership = leadership

    def snapshot(self) -> Iterator[bytes]:
        """Return the chunks of a snapshot of digest and registers."""
        registers = [(key, *written) for key, written in sorted(self.registers.items())]
        encoded = msgspec.msgpack.encode(_Snapshot(self._chain, registers, self._padding))
        return iter([encoded[at : at + CHUNK_BYTES] for at in range(0, len(encoded), CHUNK_BYTES)])

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        """Return a function that restores a snapshot, or the empty state without one."""
        if meta is None:
            return partial(self._restore, 0, {}, 0)
        snapshot = msgspec.msgpack.decode(b"".join(chunks), type=_Snapshot)
        registers = {key: Written(operation, position) for key, operation, position in snapshot.registers}
        return partial(self._restore, snapshot.chain, registers, meta.position)

    def _restore(self, chain: int, registers: dict[int, Written], position: int) -> int:
        self._chain = chain
        self.registers = registers
        return position

    def digest(self) -> int:
        """Return the digest of everything applied so far."""
        return self._chain
