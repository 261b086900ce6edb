"""Snapshot marks of the log and their consequences: snapshots, digests of the state, and trims.

A mark is in the first entry of a segment. Every replica takes a snapshot of its state before it applies that entry, and
proposes the digest of that state through the leader. A trim drops the log before one of these snapshots.
"""

from __future__ import annotations

import msgspec

from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.errors import StateDivergedError
from dledger.format import iter_commands
from dledger.replica.commands import DIGEST, SNAPSHOT_MARK, TRIM, Digest, Trim
from dledger.replica.digests import DigestVotes, Verdict
from dledger.replica.snapshotter import Snapshotter
from dledger.statemachine import StateMachine
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta, ReplicaId, SnapshotMeta

DIGEST_CHANNEL = 251
SNAPSHOT_SHARE = 0.05
"""Maximum share of the time in which snapshots are written. So marks are further apart with a large state."""


class Snapshotting:
    """Carries out the log's own commands.

    `state_index` is the last entry that the restored snapshot covers. Commands up to it have taken effect already.
    """

    def __init__(
        self,
        me: ReplicaId,
        environment: Environment,
        snapshots: SnapshotStore,
        snapshotter: Snapshotter,
        machine: StateMachine,
        engine: Engine,
        *,
        interval_s: float,
    ) -> None:
        self._me = me
        self._environment = environment
        self._snapshots = snapshots
        self._snapshotter = snapshotter
        self._machine = machine
        self._engine = engine
        self._interval_s = interval_s
        self._last_mark_at = environment.now()
        self._votes = DigestVotes()
        self.own_digest: Digest | None = None
        """This replica's digest at the last mark, until it is in the log."""
        self.state_index = -1

    @property
    def has_dispute(self) -> bool:
        """True if no majority computed the same state. Then nothing may be built on any replica's state."""
        return self._votes.has_dispute(self._engine.membership)

    def wants_mark(self) -> bool:
        """Return, on a leader at the start of a segment, whether to mark the segment.

        The last mark must be `interval_s` ago, and long enough for snapshots to take little of the time. Without an
        interval, every segment is marked.
        """
        now = self._environment.now()
        min_interval_s = max(self._interval_s, self._snapshotter.took_s / SNAPSHOT_SHARE) if self._interval_s else 0.0
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
                self._snapshotter.trim(msgspec.msgpack.decode(payload, type=Trim).position)
            elif kind == DIGEST:
                self._count_digest(msgspec.msgpack.decode(payload, type=Digest))

    def is_recorded(self, digest: Digest) -> bool:
        """Return whether the log has a replica's digest."""
        return self._votes.is_recorded(digest)

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
        self._snapshotter.begin(meta, self._machine.snapshot())

    def _count_digest(self, digest: Digest) -> None:
        verdict = self._votes.record(digest, self._engine.membership, self._me)
        if self.own_digest is not None and self._votes.is_recorded(self.own_digest):
            self.own_digest = None
        if verdict is Verdict.SELF_DIFFERS:
            raise StateDivergedError(
                f"at the snapshot mark at {digest.position} a majority has state digest {digest.digest:#018x},"
                " this replica another: it stops and must be installed anew"
            )
