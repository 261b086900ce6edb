"""Messages between the cores of two replicas; `dledger.consensus.messages` has the part that other modules use.

The transport knows sender and receiver as `ReplicaId`s, so messages do not repeat them.  On the wire the raw bytes of
its entries follow an `Append`.  Answers report the sender's clock, which the core does not use
(`dledger.replica.clocks`).  A leader reads clocks only from answers to heartbeats, because these name their question.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dledger.consensus.messages import MessageCodec
from dledger.types import NO_CHAIN, EntryMeta, Lane, Membership, SnapshotMeta


class _Control(msgspec.Struct, frozen=True, array_like=True):
    """A message that is handled without reading or writing the log."""

    lane: ClassVar[Lane] = Lane.CONTROL
    entries: ClassVar[None] = None
    snapshot: ClassVar[None] = None


class VoteRequest(_Control, frozen=True, tag="vote", array_like=True):
    """Asks for a vote. With `pre` it asks whether the vote would be granted in `term`, before the sender enters it."""

    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteReply(_Control, frozen=True, tag="voted", array_like=True):
    """Answer to a `VoteRequest`. `term` is the requested term if the vote is granted, else the voter's own term."""

    term: int
    granted: bool
    pre: bool = False


class Append(msgspec.Struct, frozen=True, tag="append", array_like=True):
    """Entries `prev_index + 1 … prev_index + count`, with their raw bytes alongside; `count` 0 is a probe.

    `prev_chain` is the chain crc of the entry `prev_index`, `NO_CHAIN` if the leader does not have it in memory.
    """

    lane: ClassVar[Lane] = Lane.BULK
    snapshot: ClassVar[None] = None

    term: int
    prev_index: int
    prev_term: int
    commit_index: int
    count: int = 0
    prev_chain: int = NO_CHAIN

    @property
    def entries(self) -> Append:
        """The message itself, which has the fields of an `EntryRange`."""
        return self

    def up_to(self, count: int) -> Append:
        """Return a copy with the first `count` entries only."""
        return msgspec.structs.replace(self, count=count)

    def behind(self, count: int, last: EntryMeta) -> Append:
        """Return a copy without the first `count` entries; `last` is the last one that is left out."""
        return msgspec.structs.replace(
            self, prev_index=last.index, prev_term=last.term, prev_chain=last.chain_crc, count=self.count - count
        )


class AppendReply(_Control, frozen=True, tag="appended", array_like=True):
    """A follower's answer to `Append`, sent again whenever its durable index grows.

    Up to `match_index` the log is durable and known to equal the leader's. Up to `verified_index` it equals the
    leader's, but may not be durable yet.  A rejection names the rejected `prev_index` and hints at the last entry that
    could match. A hint above `prev_index` is the base of the follower's log, which is committed there.
    `disk_used` is the fullness of the sender's disk in 1/1000, or `DISK_FULL` if it has no space for more ordinary
    entries.  `wall_ms` is its wall clock, for leaders of earlier versions.
    """

    term: int
    match_index: int
    verified_index: int
    rejected_index: int = -2
    hint_index: int = -1
    hint_term: int = 0
    disk_used: int = 0
    wall_ms: int = 0
    healthy: bool = True

    @property
    def rejected(self) -> bool:
        return self.rejected_index >= -1


class Heartbeat(_Control, frozen=True, tag="beat", array_like=True):
    """Keeps followers from campaigning. Carries the commit index and the number of the round in which it is sent."""

    term: int
    commit_index: int
    round: int = 0


class HeartbeatReply(_Control, frozen=True, tag="beaten", array_like=True):
    """Answer to a `Heartbeat`, with its `round`.

    `match_index` is that of `AppendReply`, `wall_ms` the sender's wall clock, and `first_position` the position at
    which its log begins. Earlier versions do not report their first position: it is -1 then.
    """

    term: int
    round: int
    match_index: int
    disk_used: int = 0
    wall_ms: int = 0
    healthy: bool = True
    first_position: int = -1


class TimeoutNow(_Control, frozen=True, tag="timeout_now", array_like=True):
    """Tells the target of a leadership transfer to campaign at once."""

    term: int


class InstallSnapshot(msgspec.Struct, frozen=True, tag="install", array_like=True):
    """Tells a follower to install a snapshot, as the leader no longer has the entries that it needs.

    The transport has sent the pieces of the snapshot before this message.
    """

    lane: ClassVar[Lane] = Lane.BULK
    entries: ClassVar[None] = None

    term: int
    position: int
    last_index: int
    last_term: int
    chain_crc: int
    membership: Membership
    membership_index: int

    @classmethod
    def of(cls, term: int, snapshot: SnapshotMeta) -> InstallSnapshot:
        """Build the message that the leader of a term sends behind all pieces of a snapshot."""
        return cls(
            term,
            snapshot.position,
            snapshot.last_index,
            snapshot.last_term,
            snapshot.chain_crc,
            snapshot.membership,
            snapshot.membership_index,
        )

    @property
    def snapshot(self) -> SnapshotMeta:
        """The snapshot behind which the follower's log is to begin."""
        return SnapshotMeta(
            self.position, self.last_index, self.last_term, self.chain_crc, self.membership, self.membership_index
        )


Message = VoteRequest | VoteReply | Append | AppendReply | Heartbeat | HeartbeatReply | TimeoutNow | InstallSnapshot

CODEC = MessageCodec(msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Message).decode)
