"""State commands: the decided facts that entries carry beside message records, and the registry of their kinds.

Each is a MessagePack map in the command section of an entry (`dledger.format.encode_command`) under its kind; the
payload of a `RawCommand` is what it says itself. A command is defined with the table that it changes; all of them, with
their modules, stand in `docs/reference/requests-and-commands.md`.

Kinds below 16 belong to the log.  Fields may be added with defaults; an unknown field is ignored, an unknown kind stops
the replica, so a kind above `LAST_BASE_KIND` is proposed only once every member advertises it (`Features`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from dledger.errors import CorruptionError
from dledger.format import encode_command
from dledger.invariants import invariant
from dledger.statemachine import CommittedEntry

FIRST_KIND: Final = 16
"""Command kinds below belong to the log."""
LAST_BASE_KIND: Final = 23
"""Kinds up to this one are understood by every version."""
MAX_OFFSETS_PER_COMMAND: Final = 2_000
"""Items in one `CommitOffsets` or `TrimQueues`: with the longest names, and each from somebody else, still within the
smallest segment."""

Command: TypeAlias = msgspec.Struct
"""One of the registered ones."""
Kinds: TypeAlias = Mapping[int, type[Command]]
"""Commands by their kinds, as the kernel or a feature defines them."""
RawHandler: TypeAlias = Callable[[memoryview | bytes, CommittedEntry], None]
"""Applies the payload of a raw command, of which no object is made."""


class RawCommand(msgspec.Struct, frozen=True):
    """A command whose payload is no MessagePack."""

    def to_payload(self) -> bytes:
        """What stands in the command section."""
        raise NotImplementedError

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> RawCommand:
        """The command; raises `CorruptionError` for a payload that does not fit."""
        raise NotImplementedError


class CommandRegistry:
    """Every command that this version understands: `types` by kind, `kinds` ascending."""

    def __init__(self, *owners: Kinds) -> None:
        """Put together what the kernel and features define."""
        types = {kind: command for owner in owners for kind, command in owner.items()}
        invariant(len(types) == sum(map(len, owners)), "a command kind has one meaning", kinds=sorted(types))
        invariant(min(types) >= FIRST_KIND, "kinds of the log are no state commands", kinds=sorted(types))
        self.types: Kinds = types
        self.kinds: tuple[int, ...] = tuple(sorted(types))
        self._kind_of = {command: kind for kind, command in types.items()}
        self._raw = {kind: command for kind, command in types.items() if issubclass(command, RawCommand)}
        self._decoders = {
            kind: msgspec.msgpack.Decoder(command) for kind, command in types.items() if kind not in self._raw
        }
        self._encode = msgspec.msgpack.Encoder().encode

    def kind_of(self, command: type[Command]) -> int:
        """The kind under which commands of a type are written."""
        return self._kind_of[command]

    def encode(self, command: Command) -> bytes:
        """The command as it stands in an entry's command section."""
        payload = command.to_payload() if isinstance(command, RawCommand) else self._encode(command)
        return encode_command(self._kind_of[type(command)], payload)

    def decode(self, kind: int, payload: bytes | memoryview) -> Command:
        """The command of a kind from its payload.

        Raises `CorruptionError` for a kind that this version does not know or a payload that does not fit: the replica
        must not go on without it.
        """
        raw = self._raw.get(kind)
        if raw is not None:
            return raw.from_payload(payload)
        decoder = self._decoders.get(kind)
        if decoder is None:
            raise CorruptionError(
                f"state command of unknown kind {kind}: a newer version wrote it; this one knows {self.kinds[0]} to "
                f"{self.kinds[-1]}; upgrade this node"
            )
        try:
            command: Command = decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(f"state command of kind {kind} does not decode: {error}") from error
        return command
