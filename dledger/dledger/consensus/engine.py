"""Engine of a replica: what a replica may ask of it, and what it is started from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from dledger.consensus.effects import Output
from dledger.consensus.messages import Message, MessageCodec
from dledger.consensus.peers import Peer
from dledger.consensus.settings import RaftSettings
from dledger.term_runs import TermRuns
from dledger.types import EntryMeta, HardState, Membership, ReplicaId, Role, SnapshotMeta

Entries = tuple[EntryMeta, ...] | list[EntryMeta]


class Engine(Protocol):
    """One replica's part in consensus, without clock, disk or network.

    Every engine commits an entry at exactly the (term, index, position) at which it was proposed, or never; it neither
    moves nor merges entries.  Calls are made on one thread.  `now` is in seconds of a monotonic clock.  What a call
    gives the replica to do is kept as effects until `take`; they are carried out in order before the next call, but for
    what may wait (`dledger.consensus.effects`).

    `disk_used`, `wall_ms` and `healthy` are set by the replica and told to the leader with answers, see `Peer`.
    Raises `ContradictionError` where a leader's log and what is committed here cannot both be right.
    """

    disk_used: int
    wall_ms: int
    healthy: bool

    @property
    def term(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def leader(self) -> ReplicaId | None:
        """Who leads this term, as far as it is known."""

    @property
    def commit_index(self) -> int:
        """The last entry that is known here to be committed; never lowered."""

    @property
    def generation(self) -> int:
        """How often entries were truncated or the log was replaced, `Truncate` and `ResetLog` counted as they are asked
        for: a sync that began in another generation vouches for nothing.
        """

    @property
    def term_start(self) -> int:
        """Index of the no-op with which this leader's term begins; -1 if it never led."""

    @property
    def may_vote(self) -> bool:
        """False while acknowledged entries may be missing here; True once a leader has made them good."""

    @property
    def transfer_to(self) -> ReplicaId | None:
        """Whom leadership is being handed to."""

    @property
    def progress(self) -> Mapping[ReplicaId, Peer]:
        """Every other member; empty unless this replica leads."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def is_voter(self) -> bool: ...
    @property
    def own_term_committed(self) -> bool:
        """Leading, and the no-op of this term is committed: the commit index is now the group's newest."""

    @property
    def accepts_proposals(self) -> bool:
        """Leading and not handing over."""

    @property
    def can_change_membership(self) -> bool:
        """An own-term entry is committed and no change of the members is pending."""

    @property
    def membership(self) -> Membership:
        """The membership in force: that of the newest membership entry, committed or not."""

    @property
    def membership_index(self) -> int:
        """Index of the entry that holds it; at most the base of the log if none of the log's does."""

    @property
    def membership_is_known(self) -> bool:
        """False while an entry that cannot be read may hold another membership than `membership`."""

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """The membership (with its entry's index) in force at `index`."""

    # ---------------------------------------------------------------- time and messages

    def take(self) -> Output:
        """The effects of all calls since the last `take`."""

    def tick(self, now: float) -> None:
        """Let time pass; to be called a few times per heartbeat interval.  A late tick alone starts no election."""

    def to_append(self, message: Message, metas: Entries) -> Entries:
        """Those of a message's entries that the engine appends if it is stepped with them; `metas` are all of them.

        Empty if the message would be rejected, or brings nothing that is not here.
        """

    def step(self, sender: ReplicaId, message: Message, now: float, metas: Entries = (), data: bytes = b"") -> None:
        """Take one message in.  `metas` and `data` are the verified entries that it brings."""

    def peer_connected(self, peer: ReplicaId, now: float) -> None:
        """A link to the peer is up again."""

    def peer_disconnected(self, peer: ReplicaId) -> None:
        """Whatever was on its way to the peer may be lost, or what was asked for it was not sent."""

    # ---------------------------------------------------------------- leading

    def propose(self, metas: Entries, data: bytes | bytearray, now: float) -> None:
        """Append own-term entries; the caller holds `accepts_proposals` (a no-op needs leadership only).

        A membership entry must change at most one voter, and needs `can_change_membership`.
        """

    def read_index(self, now: float) -> int | None:
        """Begin a read round, which `ReadsReady` or `ReadsFailed` ends; None if reads cannot be confirmed now.

        All reads asked for before a round share it.  It is confirmed only by answers to what was sent behind this call.
        """

    def broadcast_commit(self, now: float) -> None:
        """Tell the commit index at once instead of with the next heartbeat."""

    def transfer(self, to: ReplicaId, now: float) -> bool:
        """Hand leadership to a voter once it has everything; proposals stop until then or a time-out."""

    def resign(self, now: float) -> None:
        """Stop leading, in nobody's favour: this node cannot write what a leader must."""

    # ---------------------------------------------------------------- what the replica has done

    def hard_state_saved(self, state: HardState, now: float) -> None:
        """Term and vote are durable; only now do they count, here and elsewhere."""

    def synced(self, generation: int, index: int, now: float) -> None:
        """A sync that began when `index` was the last entry of `generation` has completed."""

    def catch_up_message(self, term: int, metas: Entries) -> Message | None:
        """What precedes entries that were read back for `SendCatchUp` or `SendEntries`.

        None: they are not this leader's any more, or what goes ahead of them is trimmed; they are not sent.
        """

    def catch_up_sent(self, to: ReplicaId, term: int, last_index: int, size: int, now: float) -> None:
        """The run asked for by `SendCatchUp` went out and ended at `last_index`."""

    def wants_snapshot(self, to: ReplicaId, term: int) -> bool:
        """Whether the snapshot asked for by `SendSnapshot` is still to be sent."""

    def snapshot_message(self, term: int, snapshot: SnapshotMeta) -> Message:
        """What follows the pieces of a snapshot."""

    def snapshot_sent(self, to: ReplicaId, term: int, now: float) -> None:
        """All of the snapshot asked for by `SendSnapshot` went out; if nothing comes of it, another one follows."""

    def repaired(self, first_index: int, next_index: int, memberships: Entries, term_runs: TermRuns) -> None:
        """The entries from `first_index` to before `next_index`, which could not be read, can be read again.

        `memberships` are the membership entries among them.
        """

    def trimmed(self, base_index: int, base_term: int) -> None:
        """The entries up to `base_index` are gone from the store."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """What the store has found out of its log: the entries `base_index + 1 … last_index`.

    `membership` is that of the snapshot (or the identity) that the log begins behind, `memberships` are the entries
    that changed it since.  `unread` are ranges (first index, index behind) that cannot be read: their terms are
    guessed, and they may hold memberships.
    """

    base_index: int = -1
    base_term: int = 0
    term_runs: TermRuns = ()
    last_index: int = -1
    membership: Membership = field(default_factory=Membership)
    membership_index: int = -1
    memberships: Sequence[EntryMeta] = ()
    unread: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class EngineStart:
    """What an engine goes on from.  Everything up to `durable_index` survives a loss of power.

    `may_vote` False: acknowledged entries may be missing here; no vote before a leader has made them good.
    """

    me: ReplicaId
    log: KnownLog
    hard_state: HardState
    durable_index: int
    commit_index: int
    settings: RaftSettings
    random: Random
    now: float
    may_vote: bool = True


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One kind of engine: all replicas of a group are of one kind, for others do not understand its messages.

    Identities of directories and handshakes of links hold the name, so that kinds never meet.
    """

    name: str
    start: Callable[[EngineStart], Engine]
    codec: MessageCodec
