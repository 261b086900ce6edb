"""Snapshot marks of the log and their consequences: snapshots, digests of the state, and trims.

A mark is in the first entry of a segment. Every replica takes a snapshot of its state before it applies that entry, and
proposes the digest of that state through the leader. So it shows whether all replicas compute the same state. A trim
drops the log before one of these snapshots. All three are the log's own state commands (kinds below 16; see
`dledger.format.iter_commands`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

import msgspec

from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.errors import StateDivergedError
from dledger.format import iter_commands, only_kind
from dledger.replica.snapshots.taking import SnapshotTaker
from dledger.statemachine import StateMachine
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta, Membership, ReplicaId, SnapshotMeta

SNAPSHOT_SHARE = 0.05
"""Maximum share of the time in which snapshots are written. So marks are further apart with a large state."""
SNAPSHOT_MARK = 1
"""Placed in the first entry of a segment: every replica takes a snapshot of its state before applying this entry.

No payload.
"""
TRIM = 2
"""Every replica drops the log before a position, once it has the snapshot of that position. Payload: `Trim`."""
DIGEST = 3
"""Digest of a replica's state at a snapshot mark. Payload: `Digest`."""
FIRST_SERVICE_KIND = 16
"""First kind that belongs to the state machine."""
KEPT_MARKS = 8


class SnapshotMarks:
    """Carries out the log's own commands.

    `state_index` is the last entry that the restored snapshot covers. Commands up to it have taken effect already.
    """

    def __init__(
        self,
        me: ReplicaId,
        environment: Environment,
        snapshots: SnapshotStore,
        taker: SnapshotTaker,
        machine: StateMachine,
        engine: Engine,
        *,
        interval_s: float,
    ) -> None:
        self._me = me
        self._environment = environment
        self._snapshots = snapshots
        self._taker = taker
        self._machine = machine
        self._engine = engine
        self._interval_s = interval_s
        self._last_mark_at = environment.now()
        self.votes = DigestVotes()
        self.own_digest: Digest | None = None
        """This replica's digest at the last mark, until it is in the log."""
        self.state_index = -1

    @property
    def has_dispute(self) -> bool:
        """True if no majority computed the same state. Then nothing may be built on any replica's state."""
        return self.votes.has_dispute(self._engine.membership)

    def wants_mark(self) -> bool:
        """Return, on a leader at the start of a segment, whether to mark the segment.

        The last mark must be `interval_s` ago, and long enough for snapshots to take little of the time. Without an
        interval, every segment is marked.
        """
        now = self._environment.now()
        min_interval_s = max(self._interval_s, self._taker.took_s / SNAPSHOT_SHARE) if self._interval_s else 0.0
        if now - self._last_mark_at < min_interval_s:
            return False
        self._last_mark_at = now
        return True

    def note_restored(self, state_index: int) -> None:
        """Note that the state machine was given the state as of `state_index`."""
        self.own_digest = None
        self.state_index = state_index

    def on_commands(self, meta: EntryMeta, section: memoryview, previous: EntryMeta | None) -> None:
        """Carry out the log's own commands of an entry that is about to be applied.

        `before` is the previous entry, or None if that was not applied here because a snapshot covers it.
        """
        if meta.index <= self.state_index:
            return
        for kind, payload in iter_commands(section):
            if kind == SNAPSHOT_MARK:
                self._take_snapshot(meta, previous)
            elif kind == TRIM:
                self._taker.trim(msgspec.msgpack.decode(payload, type=Trim).position)
            elif kind == DIGEST:
                self._count_digest(msgspec.msgpack.decode(payload, type=Digest))

    def is_recorded(self, digest: Digest) -> bool:
        """Return whether the log has a replica's digest."""
        return self.votes.is_recorded(digest)

    def _take_snapshot(self, mark: EntryMeta, previous: EntryMeta | None) -> None:
        """Take a snapshot of the present state, at the marked entry's position. It is the state before that entry."""
        self._last_mark_at = self._environment.now()
        self.own_digest = Digest(mark.position, *self._me, self._machine.digest())
        if previous is None or any(meta.position == mark.position for meta in self._snapshots.list()):
            return
        index = previous.index
        membership_index, membership = self._engine.membership_at(index)
        if not membership.voters:
            # Only its founders know a group's first membership. A replica that was caught up from the first entry on
            # finds a membership in its log when it was added itself, at the latest. An earlier snapshot would name no
            # voters.
            return
        meta = SnapshotMeta(mark.position, index, previous.term, previous.chain_crc, membership, membership_index)
        self._taker.begin(meta, self._machine.snapshot())

    def _count_digest(self, digest: Digest) -> None:
        verdict = self.votes.record(digest, self._engine.membership, self._me)
        if self.own_digest is not None and self.votes.is_recorded(self.own_digest):
            self.own_digest = None
        if verdict is Verdict.SELF_DIFFERS:
            raise StateDivergedError(
                f"at the snapshot mark at {digest.position} a majority has state digest {digest.digest:#018x},"
                " this replica another: it stops and must be installed anew"
            )


def has_own(section: memoryview) -> bool:
    """Return whether any command of a section is the log's own."""
    kind = only_kind(section)
    if kind is not None:
        return kind < FIRST_SERVICE_KIND
    for kind, _ in iter_commands(section):  # noqa: SIM110 - `any` would cost a second generator for each entry
        if kind < FIRST_SERVICE_KIND:
            return True
    return False


class Trim(msgspec.Struct, frozen=True, array_like=True):
    """Payload of `TRIM`. `position` is the start of a marked segment."""

    position: int


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """Payload of `DIGEST`: a replica (node id and incarnation) had `digest` at the mark at `position`."""

    position: int
    node_id: str
    incarnation: str
    digest: int


class Verdict(Enum):
    """Outcome of the digests of one mark."""

    OPEN = "open"
    AGREED = "agreed"
    SELF_DIFFERS = "self differs"
    NO_MAJORITY = "no majority"


class DigestVotes:
    """Digests of the newest marks, as applied from the log."""

    def __init__(self) -> None:
        self._marks: dict[int, dict[ReplicaId, int]] = {}
        self.disputed_mark: int | None = None

    def record(self, digest: Digest, membership: Membership, me: ReplicaId) -> Verdict:
        """Record a digest and return the verdict on its mark. Only voters' digests count."""
        mark = self._marks.setdefault(digest.position, {})
        mark[ReplicaId(digest.node_id, digest.incarnation)] = digest.digest
        while len(self._marks) > KEPT_MARKS:
            del self._marks[min(self._marks)]
        votes = _votes(mark, membership)
        if not votes:
            return Verdict.OPEN
        value, count = votes.most_common(1)[0]
        if count >= membership.quorum:
            self.disputed_mark = None
            return Verdict.SELF_DIFFERS if mark.get(me, value) != value else Verdict.AGREED
        if votes.total() == len(membership.voters):
            self.disputed_mark = digest.position
            return Verdict.NO_MAJORITY
        return Verdict.OPEN

    def has_dispute(self, membership: Membership) -> bool:
        """Return whether the replicas' states differ without a majority.

        That is so if all voters of a mark reported a digest and neither they nor the current voters have a majority for
        one value.
        """
        if self.disputed_mark is None:
            return False
        votes = _votes(self._marks.get(self.disputed_mark, {}), membership)
        if votes and votes.most_common(1)[0][1] >= membership.quorum:
            self.disputed_mark = None
        return self.disputed_mark is not None

    def is_recorded(self, digest: Digest) -> bool:
        """Return whether this very digest was applied, or belongs to a mark too old to be counted."""
        if len(self._marks) == KEPT_MARKS and digest.position < min(self._marks):
            return True
        replica = ReplicaId(digest.node_id, digest.incarnation)
        return self._marks.get(digest.position, {}).get(replica) == digest.digest


def _votes(mark: Mapping[ReplicaId, int], membership: Membership) -> Counter[int]:
    return Counter(value for replica, value in mark.items() if replica in membership.voters)
