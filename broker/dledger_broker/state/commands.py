"""State commands: the decided facts that entries carry beside message records.

Each is a MessagePack map in the command section of an entry (`dledger.format.encode_command`) under its kind:

    kind  command
      16  PutTopic        create or replace a topic's configuration
      17  DeleteTopic     remove a topic, its queues and the offsets committed on them
      18  PutGroup        create or replace a consumer group's configuration
      19  DeleteGroup     remove a consumer group, with its offsets if asked
      20  CommitOffsets   consumer offsets of any number of groups
      21  DeleteOffsets   forget the offsets of groups on topics
      22  TrimQueues      the first kept offset of queues whose messages are about to be trimmed
      23  Features        the command kinds that one member understands
      24  SetOrdinal      the group's number among the groups of its cluster, once
      25  PutPin          keep the log from a position on, or go on keeping it
      26  DeletePins      give pins up
      27  RememberSends   opted-in sends that the same entry stores
      28  LimitSends      for how long sends are remembered, and how many

Kinds below 16 belong to the log.  Fields may be added with defaults; an unknown field is ignored, an unknown kind stops
the replica, so a kind above `LAST_BASE_KIND` is proposed only once every member advertises it (`Features`).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from dledger.errors import CorruptionError
from dledger.format import encode_command
from dledger_broker.state.recent_commits import Committer
from dledger_broker.state.rows import ROW_BYTES
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig


class PutTopic(msgspec.Struct, frozen=True):
    """Create or replace a topic; `store_timestamp_ms` is the leader's clock when it decided."""

    config: TopicConfig
    store_timestamp_ms: int


class DeleteTopic(msgspec.Struct, frozen=True):
    """Remove a topic.  A topic created later under the same name starts its queues at offset 0."""

    topic: str


class PutGroup(msgspec.Struct, frozen=True):
    """Create or replace a consumer group."""

    config: SubscriptionGroupConfig


class DeleteGroup(msgspec.Struct, frozen=True):
    """Remove a consumer group; with `clean_offsets` its committed offsets go too."""

    group: str
    clean_offsets: bool = False


class CommitOffsets(msgspec.Struct, frozen=True):
    """Consumer offsets as (group, topic, queue id, offset), stored as they are, in this order.

    `by` names the committer of each row by its place in `committers`, -1 if nobody said who it was; both are empty in
    what versions wrote that did not tell.
    """

    offsets: tuple[tuple[str, str, int, int], ...]
    committers: tuple[Committer, ...] = ()
    by: tuple[int, ...] = ()


class DeleteOffsets(msgspec.Struct, frozen=True):
    """Forget what the (group, topic) pairs have committed."""

    pairs: tuple[tuple[str, str], ...]


class TrimQueues(msgspec.Struct, frozen=True):
    """First kept offsets as (topic, created position of the topic, queue id, offset).

    The leader finds them before it trims the log below `before_position`; a topic that was created anew meanwhile does
    not match its created position and keeps its offsets.
    """

    before_position: int
    first_offsets: tuple[tuple[str, int, int, int], ...]


class Features(msgspec.Struct, frozen=True):
    """The command kinds that the member `node_id` understands."""

    node_id: str
    kinds: tuple[int, ...]


class SetOrdinal(msgspec.Struct, frozen=True):
    """The group's number among the groups of its cluster; a second one changes nothing."""

    ordinal: int


class PutPin(msgspec.Struct, frozen=True):
    """Keep the log from `position` on for `lease_ms` after `renewed_ms`, the leader's clock when it decided.

    Of a pin that exists, the lower position stays and the lease starts anew.
    """

    name: str
    position: int
    lease_ms: int
    renewed_ms: int


class DeletePins(msgspec.Struct, frozen=True):
    """Give pins up; a name without a pin is no error."""

    names: tuple[str, ...]


class RememberSends(msgspec.Struct, frozen=True):
    """Sends whose records stand in the same entry: `remembered_rows`.  The payload is that, and no MessagePack: this
    command comes with every entry of opted-in sends.
    """

    rows: bytes


class LimitSends(msgspec.Struct, frozen=True):
    """Remember sends for `window_ms`, 0 = not at all, and no more than `max_rows` at a time."""

    window_ms: int
    max_rows: int


Command: TypeAlias = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | CommitOffsets
    | DeleteOffsets
    | TrimQueues
    | Features
    | SetOrdinal
    | PutPin
    | DeletePins
    | RememberSends
    | LimitSends
)

REMEMBER_SENDS: Final = 27

KINDS: Final[dict[int, type[Command]]] = {
    16: PutTopic,
    17: DeleteTopic,
    18: PutGroup,
    19: DeleteGroup,
    20: CommitOffsets,
    21: DeleteOffsets,
    22: TrimQueues,
    23: Features,
    24: SetOrdinal,
    25: PutPin,
    26: DeletePins,
    REMEMBER_SENDS: RememberSends,
    28: LimitSends,
}
"""Every kind that this version understands."""

LAST_BASE_KIND: Final = 23
"""Kinds up to this one are understood by every version."""

MAX_OFFSETS_PER_COMMAND: Final = 2_000
"""Items in one `CommitOffsets` or `TrimQueues`: with the longest names, and each from somebody else, still within the
smallest segment."""

_KIND_OF: Final = {command: kind for kind, command in KINDS.items()}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(command) for kind, command in KINDS.items()}
_encode = msgspec.msgpack.Encoder().encode


def kind_of(command: Command) -> int:
    """The kind under which a command is written."""
    return _KIND_OF[type(command)]


def kind_of_type(command: type[Command]) -> int:
    """The kind under which commands of a type are written."""
    return _KIND_OF[command]


def understood_kinds() -> tuple[int, ...]:
    """The kinds that this version understands, ascending."""
    return tuple(sorted(KINDS))


def encode(command: Command) -> bytes:
    """The command as it stands in an entry's command section."""
    payload = command.rows if isinstance(command, RememberSends) else _encode(command)
    return encode_command(kind_of(command), payload)


def remembered_rows(payload: bytes | memoryview) -> bytes:
    """The rows in the payload of `REMEMBER_SENDS`: all families (4 bytes each), all members (2), all positions (8),
    big-endian.

    Raises `CorruptionError` for a payload that holds something else.
    """
    if not payload or len(payload) % ROW_BYTES:
        raise CorruptionError(f"state command of kind {REMEMBER_SENDS}: {len(payload)} bytes are no rows")
    return bytes(payload)


def decode(kind: int, payload: bytes | memoryview) -> Command:
    """The command of a kind from its payload.

    Raises `CorruptionError` for a kind that this version does not know or a payload that does not fit: the replica must
    not go on without it.
    """
    if kind == REMEMBER_SENDS:
        return RememberSends(remembered_rows(payload))
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise CorruptionError(
            f"state command of unknown kind {kind}: a newer version wrote it; this one knows {min(KINDS)} to "
            f"{max(KINDS)}; upgrade this node"
        )
    try:
        command: Command = decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"state command of kind {kind} does not decode: {error}") from error
    return command
