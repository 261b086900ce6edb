"""Messages between the cores of two replicas; see `dledger.consensus.messages` for what others know of them.

Sender and receiver are `ReplicaId`s known to whoever carries a message, and are not repeated inside.  `Append` is
followed on the wire by the raw bytes of its entries.  On clocks that answers tell the core decides nothing
(`dledger.replica.clocks`); a leader takes them from the answers to beats alone, for these name what they answer.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dledger.consensus.messages import MessageCodec
from dledger.types import NO_CHAIN, EntryMeta, Lane, Membership, SnapshotMeta


class _Control(msgspec.Struct, frozen=True, array_like=True):
    """A message that speaks of no part of the log that its receiver would have to look at."""

    lane: ClassVar[Lane] = Lane.CONTROL
    entries: ClassVar[None] = None
    snapshot: ClassVar[None] = None


class VoteRequest(_Control, frozen=True, tag="vote", array_like=True):
    """Asks for a vote, or with `pre` whether one would be given in `term`, which the asker has not entered yet."""

    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteReply(_Control, frozen=True, tag="voted", array_like=True):
    """`term` repeats the asked-for one when granted, else it is the answerer's."""

    term: int
    granted: bool
    pre: bool = False


class Append(msgspec.Struct, frozen=True, tag="append", array_like=True):
    """Entries `prev_index + 1 … prev_index + count`, raw bytes alongside; `count` 0 is a probe.

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
        """The message itself: nothing is made for it."""
        return self

    def up_to(self, count: int) -> Append:
        """See `EntryRange`."""
        return msgspec.structs.replace(self, count=count)

    def behind(self, count: int, last: EntryMeta) -> Append:
        """See `EntryRange`."""
        return msgspec.structs.replace(
            self, prev_index=last.index, prev_term=last.term, prev_chain=last.chain_crc, count=self.count - count
        )


class AppendReply(_Control, frozen=True, tag="appended", array_like=True):
    """A follower's answer to `Append`, sent again whenever its durable index grows.

    `match_index` is durable and known to equal the leader's log; `verified_index` likewise but perhaps not yet
    durable.  A rejection names the `prev_index` it rejects and hints at the last entry that could match;
    a hint above that index is where the follower's log begins, and what it has committed there.
    `disk_used` is the fullness of the sender's disk in 1/1000, `DISK_FULL` if it has no space for further ordinary
    entries; `wall_ms` is its wall clock, for leaders of earlier versions.
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
    """Keeps followers from campaigning; carries the commit index and the number of the round in which it is sent."""

    term: int
    commit_index: int
    round: int = 0


class HeartbeatReply(_Control, frozen=True, tag="beaten", array_like=True):
    """Echoes `round`; `match_index` as in `AppendReply`, `wall_ms` is the sender's wall clock."""

    term: int
    round: int
    match_index: int
    disk_used: int = 0
    wall_ms: int = 0
    healthy: bool = True


class TimeoutNow(_Control, frozen=True, tag="timeout_now", array_like=True):
    """The leader asks its successor to campaign at once."""

    term: int


class InstallSnapshot(msgspec.Struct, frozen=True, tag="install", array_like=True):
    """A follower needs entries that the leader no longer has; the chunks travel beside the core."""

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
        """What the leader of a term sends behind all pieces of a snapshot."""
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
        """What the log is to begin behind."""
        return SnapshotMeta(
            self.position, self.last_index, self.last_term, self.chain_crc, self.membership, self.membership_index
        )


Message = VoteRequest | VoteReply | Append | AppendReply | Heartbeat | HeartbeatReply | TimeoutNow | InstallSnapshot

CODEC = MessageCodec(msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Message).decode)
