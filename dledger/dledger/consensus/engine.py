"""Engine of a replica: its interface for the replica, and the state from which it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from dledger.consensus.effects import Output
from dledger.consensus.messages import Message, MessageCodec
from dledger.consensus.peers import Peer
from dledger.term_runs import TermRuns
from dledger.types import EntryMeta, HardState, Membership, ReplicaId, Role, SnapshotMeta


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Settings of an engine: times in seconds, sizes in bytes."""

    heartbeat_s: float = 0.1
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    max_run_bytes: int = 1 << 20
    """Maximum size of the entries in one append, unless one entry is larger."""
    max_in_flight_bytes: int = 4 << 20
    """Maximum number of unanswered bytes per peer, unless one entry is larger."""


Entries = tuple[EntryMeta, ...] | list[EntryMeta]


class Engine(Protocol):
    """One replica's part in consensus, without clock, disk or network.

    Every engine commits an entry at exactly the (term, index, position) at which it was proposed, or never. It neither
    moves nor merges entries.  Calls are made on one thread.  `now` is in seconds of a monotonic clock.

    A call leaves effects, which `take` returns. The replica carries them out in order before the next call, except for
    effects that may wait (`dledger.consensus.effects`).

    The replica sets `disk_used`, `wall_ms`, `healthy` and `first_position`. Answers report them to the leader (`Peer`).
    Raises `ContradictionError` if a leader's log and the committed entries here cannot both be right.
    """

    disk_used: int
    wall_ms: int
    healthy: bool
    first_position: int

    @property
    def term(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def leader(self) -> ReplicaId | None:
        """The leader of this term, None if it is unknown."""

    @property
    def commit_index(self) -> int:
        """Index of the last entry that this replica knows to be committed; it never decreases."""

    @property
    def generation(self) -> int:
        """Number of truncations and replacements of the log, counted with the effects `Truncate` and `ResetLog`.

        A sync that began in another generation vouches for nothing.
        """

    @property
    def term_start(self) -> int:
        """Index of the no-op with which this leader's term begins; -1 if it never led."""

    @property
    def may_vote(self) -> bool:
        """False while acknowledged entries may be missing here; True once a leader has sent them again."""

    @property
    def transfer_to(self) -> ReplicaId | None:
        """Target of the leadership transfer under way; None if no transfer is under way."""

    @property
    def was_asked_to_lead(self) -> bool:
        """True if the last campaign of this replica began because the leader handed over to it."""

    @property
    def progress(self) -> Mapping[ReplicaId, Peer]:
        """The leader's knowledge of every other member; empty unless this replica leads."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def is_voter(self) -> bool: ...
    @property
    def own_term_committed(self) -> bool:
        """True if this replica leads and its no-op is committed: its commit index is then the group's newest."""

    @property
    def accepts_proposals(self) -> bool:
        """True if this replica leads and does not transfer leadership."""

    @property
    def can_change_membership(self) -> bool:
        """True if an own-term entry is committed and no change of the membership is pending."""

    @property
    def membership(self) -> Membership:
        """The membership in force: that of the newest membership entry, committed or not."""

    @property
    def membership_index(self) -> int:
        """Index of the entry that holds `membership`; at most the base if no entry of the log holds it."""

    @property
    def membership_is_known(self) -> bool:
        """False while an entry that cannot be read may hold another membership than `membership`."""

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the membership (with its entry's index) in force at `index`."""

    # ---------------------------------------------------------------- time and messages

    def take(self) -> Output:
        """Return the effects of all calls since the last `take`."""

    def tick(self, now: float) -> None:
        """Let time pass; call it a few times per heartbeat interval.  A late tick alone starts no election."""

    def to_append(self, message: Message, metas: Entries) -> Entries:
        """Return the entries of a message that `step` would append; `metas` are all its entries.

        The result is empty if the message would be rejected, or if the log already has all its entries.
        """

    def step(self, sender: ReplicaId, message: Message, now: float, metas: Entries = (), data: bytes = b"") -> None:
        """Handle one message.  `metas` and `data` are the verified entries that it carries."""

    def peer_connected(self, peer: ReplicaId, now: float) -> None:
        """Note that a link to the peer is up again."""

    def peer_disconnected(self, peer: ReplicaId) -> None:
        """Note that messages on their way to the peer may be lost, or that a requested message was not sent."""

    # ---------------------------------------------------------------- leading

    def propose(self, metas: Entries, data: bytes | bytearray, now: float) -> None:
        """Append own-term entries; the caller holds `accepts_proposals` (a no-op needs leadership only).

        A membership entry must change at most one voter, and needs `can_change_membership`.
        """

    def read_index(self, now: float) -> int | None:
        """Begin a read round, which `ReadsReady` or `ReadsFailed` ends; None if reads cannot be confirmed now.

        All reads requested before a round share it.  Only answers to messages sent after this call confirm the round.
        """

    def broadcast_commit(self, now: float) -> None:
        """Send the commit index to all members at once, instead of with the next heartbeat."""

    def transfer(self, to: ReplicaId, now: float) -> bool:
        """Hand leadership to a voter once it has all entries; proposals stop until then or a time-out."""

    def resign(self, now: float) -> None:
        """Stop leading without a successor: this node cannot write the entries of a leader."""

    # ---------------------------------------------------------------- what the replica has done

    def hard_state_saved(self, state: HardState, now: float) -> None:
        """Note that term and vote are durable. Only from now on they count, here and on other replicas."""

    def synced(self, generation: int, index: int, now: float) -> None:
        """Note the end of a sync that began when `index` was the last entry of `generation`."""

    def catch_up_message(self, term: int, metas: Entries) -> Message | None:
        """Return the message that precedes entries read back for `SendCatchUp` or `SendEntries`.

        None means that the entries are not sent: this replica does not lead any more, or the entry before them is
        trimmed.
        """

    def catch_up_sent(self, to: ReplicaId, term: int, last_index: int, size: int, now: float) -> None:
        """Note that the run of a `SendCatchUp` was sent and ended at `last_index`."""

    def wants_snapshot(self, to: ReplicaId, term: int) -> bool:
        """Return True if the snapshot of a `SendSnapshot` is still to be sent."""

    def snapshot_message(self, term: int, snapshot: SnapshotMeta) -> Message:
        """Return the message that follows the pieces of a snapshot."""

    def snapshot_sent(self, to: ReplicaId, term: int, now: float) -> None:
        """Note that the snapshot of a `SendSnapshot` was sent; if the follower does not install it, another follows."""

    def repaired(self, first_index: int, next_index: int, memberships: Entries, term_runs: TermRuns) -> None:
        """Note that the entries from `first_index` to before `next_index` can be read again.

        `memberships` are the membership entries among them.
        """

    def trimmed(self, base_index: int, base_term: int) -> None:
        """Note that the entries up to `base_index` are gone from the store."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """The store's knowledge of its log, which has the entries `base_index + 1 … last_index`.

    `membership` is that of the snapshot (or the identity) behind which the log begins. `memberships` are the entries
    that changed it since.  `unread` are ranges (first index, index behind) that cannot be read. Their terms are
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
    """State from which an engine starts.  Everything up to `durable_index` survives a loss of power.

    With `may_vote` False, acknowledged entries may be missing here: the replica does not vote before a leader has sent
    them again.
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
    """One kind of engine: all replicas of a group have the same kind, because others do not understand its messages.

    The name is in the identity of each directory and in each handshake, so that replicas of different kinds never
    connect.
    """

    name: str
    start: Callable[[EngineStart], Engine]
    codec: MessageCodec
