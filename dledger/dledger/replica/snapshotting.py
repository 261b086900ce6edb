"""Snapshot marks of the log, and their consequences: snapshots, digests of the state, trims.

A mark stands in the first entry of a segment.  Every replica snapshots its state before it applies that entry, and
proposes through the leader what its state amounted to there.  A trim drops what lies before such a snapshot.
"""

from __future__ import annotations

import msgspec

from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.errors import BusyError, LogFullError, StateDivergedError
from dledger.format import encode_command, iter_commands
from dledger.net.transport import Transport
from dledger.replica.commands import DIGEST, SNAPSHOT_MARK, TRIM, Digest, Trim
from dledger.replica.digests import DigestVotes, Verdict
from dledger.replica.driver import Driver
from dledger.replica.snapshotter import Snapshotter
from dledger.statemachine import StateMachine
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta, ReplicaId, SnapshotMeta

DIGEST_CHANNEL = 251
SNAPSHOT_SHARE = 0.05
"""Of the time at most, snapshots are written: a large state has them further apart."""


class Snapshotting:
    """Carries out the log's own commands, and proposes them.

    `state_index` is the last entry that the restored snapshot covers: commands up to it had their effect already.
    """

    def __init__(
        self,
        me: ReplicaId,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        snapshots: SnapshotStore,
        snapshotter: Snapshotter,
        machine: StateMachine,
        engine: Engine,
        driver: Driver,
        *,
        interval_s: float,
    ) -> None:
        self._me = me
        self._environment = environment
        self._transport = transport
        self._store = store
        self._snapshots = snapshots
        self._snapshotter = snapshotter
        self._machine = machine
        self._engine = engine
        self._driver = driver
        self._interval_s = interval_s
        self._last_mark_at = environment.now()
        self._votes = DigestVotes()
        self._own_digest: Digest | None = None
        self.state_index = -1

    @property
    def disagree(self) -> bool:
        """No majority computed the same state: nothing may be built on any of them."""
        return self._votes.disagree(self._engine.membership)

    def wanted(self) -> bool:
        """Leader, at a segment start: whether to mark it.

        The last mark is `interval_s` ago, and long enough for snapshots to take little of the time; with no interval,
        every segment is marked.
        """
        now = self._environment.now()
        apart = max(self._interval_s, self._snapshotter.took_s / SNAPSHOT_SHARE) if self._interval_s else 0.0
        if now - self._last_mark_at < apart:
            return False
        self._last_mark_at = now
        return True

    def restored(self, state_index: int) -> None:
        """The state machine was given the state as of `state_index`."""
        self._own_digest = None
        self.state_index = state_index

    def on_commands(self, meta: EntryMeta, section: memoryview, before: EntryMeta | None) -> None:
        """Carry out the log's own commands of an entry that is about to be applied.

        `before` is the entry before it, None if that was not applied here: a snapshot stands between them.
        """
        if meta.index <= self.state_index:
            return
        for kind, payload in iter_commands(section):
            if kind == SNAPSHOT_MARK:
                self._take_snapshot(meta, before)
            elif kind == TRIM:
                self._snapshotter.trim(msgspec.msgpack.decode(payload, type=Trim).position)
            elif kind == DIGEST:
                self._count_digest(msgspec.msgpack.decode(payload, type=Digest))

    def propose_trim(self, position: int) -> bool:
        """Leader: have every replica drop what lies before a snapshot; False if none stands at `position`."""
        known = any(meta.position == position for meta in self._snapshots.list())
        if not known or position <= self._store.first_position:
            return False
        command = encode_command(TRIM, msgspec.msgpack.encode(Trim(position)))
        self._driver.stage(0, None, command, None, privileged=True)
        return True

    def offer_digest(self) -> None:
        """Have the own digest put into the log, through the leader; repeated until it is there."""
        digest, leader = self._own_digest, self._engine.leader
        if digest is None:
            return
        if self._driver.is_ready:
            self.propose_digest(msgspec.msgpack.encode(digest))
        elif leader is not None and leader != self._me:
            self._transport.send_data(leader.node_id, DIGEST_CHANNEL, (msgspec.msgpack.encode(digest),))

    def propose_digest(self, data: bytes) -> None:
        """Leader: put a replica's digest into the log, unless it is there."""
        digest = msgspec.msgpack.decode(data, type=Digest)
        if not self._votes.knows(digest):
            try:
                self._driver.stage(0, None, encode_command(DIGEST, data), None, own=True)
            except (BusyError, LogFullError):
                pass  # whoever has the digest offers it again

    def _take_snapshot(self, mark: EntryMeta, before: EntryMeta | None) -> None:
        """The state before the marked entry, as it is now, named by that entry's position."""
        self._last_mark_at = self._environment.now()
        self._own_digest = Digest(mark.position, *self._me, self._machine.digest())
        if before is None or any(meta.position == mark.position for meta in self._snapshots.list()):
            return
        index = before.index
        membership_index, membership = self._engine.membership_at(index)
        if not membership.voters:
            # Only its founders know a group's first membership. A replica that was caught up from the first entry on
            # meets one in its log at the latest where it was taken in itself; a snapshot from before would name none.
            return
        meta = SnapshotMeta(mark.position, index, before.term, before.chain_crc, membership, membership_index)
        self._snapshotter.begin(meta, self._machine.snapshot())

    def _count_digest(self, digest: Digest) -> None:
        verdict = self._votes.record(digest, self._engine.membership, self._me)
        if self._own_digest is not None and self._votes.knows(self._own_digest):
            self._own_digest = None
        if verdict is Verdict.SELF_DIFFERS:
            raise StateDivergedError(
                f"at the snapshot mark at {digest.position} a majority has state digest {digest.digest:#018x},"
                " this replica another: it stops and must be installed anew"
            )
