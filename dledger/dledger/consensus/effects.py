"""Effects of an engine: everything that it can ask of its replica.

A replica carries the effects of one call out in order, before it makes the next call.  `Output.after_sync` holds the
messages that may leave only once every `SaveHardState` up to and including this output's is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dledger.consensus.messages import Message
from dledger.types import EntryMeta, HardState, Membership, ReplicaId, Role, SnapshotMeta


class SaveHardState(msgspec.Struct, frozen=True):
    """Make term and vote durable, then call `hard_state_saved`."""

    state: HardState


class AppendEntries(msgspec.Struct, frozen=True):
    """Write entries at the end of the log; `data` are their raw bytes.  Call `synced` once they are durable."""

    metas: Sequence[EntryMeta]
    data: bytes | bytearray | memoryview


class Truncate(msgspec.Struct, frozen=True):
    """Drop the entries from `first_index` on; starts another generation of sync tokens."""

    first_index: int


class ResetLog(msgspec.Struct, frozen=True):
    """Replace the log by an installed snapshot, which is durable already."""

    base: SnapshotMeta


class SendMessage(msgspec.Struct, frozen=True):
    """Send on the message's lane: control for votes, heartbeats and acknowledgements, bulk for probes."""

    to: ReplicaId
    message: Message


class SendEntries(msgspec.Struct, frozen=True):
    """Send `message` followed by the raw bytes of its `entries`."""

    to: ReplicaId
    message: Message


class SendCatchUp(msgspec.Struct, frozen=True):
    """Read a contiguous run of at most `max_bytes` (or one entry) from `first_index` on and send it.

    `catch_up_message` returns the message that precedes the entries.  Call `catch_up_sent` with the end of the run, or
    `peer_disconnected` if nothing was sent.
    """

    to: ReplicaId
    term: int
    first_index: int
    max_bytes: int


class SendSnapshot(msgspec.Struct, frozen=True):
    """Send the oldest kept snapshot that the log continues, then the message that `snapshot_message` returns.

    Call `snapshot_sent` once the whole snapshot was sent, or `peer_disconnected` if it was not.
    """

    to: ReplicaId
    term: int


class Commit(msgspec.Struct, frozen=True):
    """All entries up to `index` are committed."""

    index: int


class RoleChanged(msgspec.Struct, frozen=True):
    """Role, term or known leader changed.  A replica that became leader must propose a no-op at once."""

    role: Role
    term: int
    leader: ReplicaId | None


class MembershipChanged(msgspec.Struct, frozen=True):
    """Another membership is in force (appended, or restored by a truncation)."""

    membership: Membership
    index: int


class ReadsReady(msgspec.Struct, frozen=True):
    """Reads up to `round` may be served once `index` is applied."""

    round: int
    index: int


class ReadsFailed(msgspec.Struct, frozen=True):
    """All outstanding read rounds are void: leadership was lost."""


Effect = (
    SaveHardState
    | AppendEntries
    | Truncate
    | ResetLog
    | SendMessage
    | SendEntries
    | SendCatchUp
    | SendSnapshot
    | Commit
    | RoleChanged
    | MembershipChanged
    | ReadsReady
    | ReadsFailed
)


class Output(msgspec.Struct):
    """The effects of one call."""

    effects: list[Effect]
    after_sync: list[SendMessage | SendEntries | SendCatchUp]
