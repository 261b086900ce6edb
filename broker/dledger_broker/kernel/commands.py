"""State commands: the decided facts that entries carry beside message records, and the registry of their kinds.

Each command is a MessagePack map in the command section of an entry (`dledger.format.encode_command`), under its kind.
The class of a `RawCommand` defines its own payload. A command is defined beside the table that it changes.
`docs/reference/requests-and-commands.md` lists all commands with their modules.

Kinds below 16 belong to the log. Fields may be added with defaults, and an unknown field is ignored. An unknown kind
stops the replica. A kind above `LAST_BASE_KIND` is therefore proposed only once every member advertises it
(`Features`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from dledger.errors import CorruptionError
from dledger.format import encode_command
from dledger.statemachine import CommittedEntry
from dledger_base.invariants import invariant

FIRST_KIND: Final = 16
"""Minimum kind of a state command. Kinds below belong to the log."""
LAST_BASE_KIND: Final = 23
"""Maximum kind that every version understands."""
MAX_OFFSETS_PER_COMMAND: Final = 2_000
"""Maximum number of items in a `CommitOffsets` or `TrimQueues`. With the longest names, and another committer for each
item, they still fit into the smallest segment.
"""

Command: TypeAlias = msgspec.Struct
"""A registered command."""
Kinds: TypeAlias = Mapping[int, type[Command]]
"""Commands by their kinds, as the kernel or a feature defines them."""
RawHandler: TypeAlias = Callable[[memoryview | bytes, CommittedEntry], None]
"""Applies the payload of a raw command without making an object of it."""


class RawCommand(msgspec.Struct, frozen=True):
    """A command with a payload of its own instead of a MessagePack map."""

    def to_payload(self) -> bytes:
        """Return the payload for the command section."""
        raise NotImplementedError

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> RawCommand:
        """Return the command in a payload. Raises `CorruptionError` for a payload that does not fit."""
        raise NotImplementedError


class CommandRegistry:
    """Every command that this version understands: `types` by kind, `kinds` ascending."""

    def __init__(self, *owners: Kinds) -> None:
        """Join the commands that the kernel and features define."""
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
        """Return the kind under which commands of a type are written."""
        return self._kind_of[command]

    def encode(self, command: Command) -> bytes:
        """Return the bytes of a command in an entry's command section."""
        payload = command.to_payload() if isinstance(command, RawCommand) else self._encode(command)
        return encode_command(self._kind_of[type(command)], payload)

    def decode(self, kind: int, payload: bytes | memoryview) -> Command:
        """Return the command of a kind from its payload.

        Raises `CorruptionError` for a kind that this version does not know or a payload that does not fit. The replica
        must not continue without the command.
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
