"""Leader's part of a replica: stages units, proposes entries, changes the membership, hands leadership over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.errors import BusyError, LogFullError
from dledger.replica.applying.applier import Contexts
from dledger.replica.driver import Completions, Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.snapshots.marks import SnapshotMarks
from dledger.replica.standing import ConnectedPeers, Standing, not_leader
from dledger.replica.writing.proposer import Backlog, Proposer, SealedEntry, check_room
from dledger.replica.writing.space import Admission, Reserver
from dledger.store.log import LogStore
from dledger.types import EntryKind, Fill, Membership, ReplicaId, Role
from dledger_base.loop_holds import PROPOSE, works_for

COMPLAINT_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)


class Leading:
    """Proposals of this replica, until they are applied or given up."""

    def __init__(
        self,
        config: ReplicaConfig,
        environment: Environment,
        store: LogStore,
        reserver: Reserver,
        feed: MachineFeed,
        completions: Completions,
        marks: SnapshotMarks,
        connected: ConnectedPeers,
        standing: Standing,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._config = config
        self._environment = environment
        self._reserver = reserver
        self._backlog = Backlog(store)
        self._store = store
        self._feed = feed
        self._completions = completions
        self._marks = marks
        self._connected = connected
        self._standing = standing
        self._engine = engine
        self._driver = driver
        self._committed_end = store.first_position
        """Position where the last committed entry ends."""
        self._seal_scheduled = False
        self._was_leader = False
        self._next_complaint_at = float("-inf")
        self._is_flushing_service = False
        self.on_handover: list[Callable[[], None]] = []
        """Hooks that are called before a handover begins, so that the service stages what it still holds back."""
        self.contexts = Contexts()
        self.admission = Admission(config, store, reserver, self._backlog, marks, engine)
        self.roster = Roster(config.node_id, engine.membership)
        self._proposer = Proposer(
            segment_bytes=config.segment_bytes,
            next_position=self.admission.next_position,
            last_entry=self._backlog.last_entry,
            on_sealed=self._propose,
            wants_mark=marks.wants_mark,
        )

    def stage(
        self,
        size: int,
        fill: Fill | None,
        commands: bytes | bytearray,
        context: object,
        *,
        privileged: bool = False,
        own: bool = False,
    ) -> int:
        """Put a unit into this turn's entry; see `dledger.log.Log.stage`.

        `privileged` units may use the space that is kept back for a full disk. Digests are the log's `own` units. They
        are accepted while states differ, because they show when the states agree again.
        """
        completions = self._completions
        if completions.executing:
            completions.require_outside("stage")
        if not self._standing.is_ready:
            raise not_leader(self._engine)
        if not self._is_flushing_service:
            check_room(self._backlog.end_position - self._committed_end, self._config.max_uncommitted_bytes)
        if not own and self._marks.votes.disputed_mark is not None:
            self.admission.require_agreement()
        completions.executing += 1
        try:
            position = self._proposer.stage(self._engine.term, size, fill, commands, context, privileged=privileged)
        finally:
            completions.executing -= 1
        if not self._seal_scheduled:
            self._seal_scheduled = True
            self._environment.call_soon(self._seal)
        return position

    @property
    def end_position(self) -> int:
        """Position where the log ends once everything sealed is written."""
        return self._backlog.end_position

    def note_committed(self, index: int) -> None:
        """Note that entries up to `index` are committed."""
        meta = self._store.held_meta(index)
        # None for old entries only: a leader, whose proposals this bounds, holds its newest entries
        if meta is not None:
            self._committed_end = meta.position + meta.size

    def note_replaced(self, position: int) -> None:
        """Note that the log was replaced by an empty one that begins at `position`."""
        self._committed_end = position

    def change_membership(self, membership: Membership) -> None:
        """Propose another membership; at most one voter may differ."""
        if not self._standing.is_ready or not self._engine.can_change_membership:
            raise not_leader(self._engine)
        self._seal_now()
        if self._backlog:  # it may hold a membership already
            raise BusyError(f"{len(self._backlog)} entries wait for space: try again later")
        self._propose(self._proposer.control_entry(EntryKind.MEMBERSHIP, self._engine.term, membership))

    def transfer(self, to: ReplicaId | None) -> bool:
        """Hand leadership to a voter, by default the one with the longest log; False if that cannot begin.

        Before that, the service stages what it holds back. The target of the handover is asked to campaign once it has
        all entries staged by then. If that takes too long, the handover is given up.
        """
        engine = self._engine
        if not engine.is_leader:
            return False
        if self._standing.successor is not None:
            return True
        if to is None:
            candidates = [
                (progress.match_index, peer)
                for peer, progress in engine.progress.items()
                if peer in engine.membership.voters and progress.healthy and self._connected.has_node(peer.node_id)
            ]
            if not candidates:
                return False
            to = max(candidates)[1]
        self._flush_service()
        self._seal_now()
        if self._backlog:
            self._standing.successor = to
            return True
        return engine.transfer(to, self._environment.now())

    def give_up_waiting(self) -> None:
        """Drop the entries that wait for space, because the disk hangs and a handover should not wait for it.

        None of them was proposed. A leader whose no-op is among them resigns.
        """
        if not self._backlog:
            return
        if self._engine.own_term_committed:
            error = LogFullError("the disk does not answer: no space could be reserved; another node is to lead")
            contexts = [*self._backlog.drop(), *self._proposer.drop()]
            self._completions.add(partial(self._feed.dropped, contexts, error))
            self._continue_handover()
        else:
            self._engine.resign(self._environment.now())

    @property
    def is_handing_over(self) -> bool:
        """True if a handover to another voter has begun."""
        return self._standing.successor is not None or self._engine.transfer_to is not None

    def _continue_handover(self) -> None:
        """Go on with a handover, now that no entry waits for space."""
        successor, self._standing.successor = self._standing.successor, None
        if successor is not None:
            self._engine.transfer(successor, self._environment.now())

    def _flush_service(self) -> None:
        """Have the service stage what it holds back.

        The limit of uncommitted bytes does not apply: this happens once and is little.
        """
        self._completions.require_outside("a handover")
        if not self._standing.is_ready:
            return
        self._is_flushing_service = True
        try:
            for hook in self.on_handover:
                hook()
        finally:
            self._is_flushing_service = False

    def role_changed(self, role: Role) -> None:
        """Propose the no-op of a new leader, or drop the proposals of a former one."""
        engine = self._engine
        leader = engine.leader.node_id if engine.leader is not None else None
        logger.info(
            "node=%s event=role role=%s term=%d leader=%s",
            self._config.node_id, role.name.lower(), engine.term, leader or "unknown",
        )  # fmt: skip
        if role is Role.LEADER:
            self._was_leader = True
            self._propose(self._proposer.control_entry(EntryKind.NO_OP, self._engine.term, None))
        elif self._was_leader:
            self._was_leader = False
            self.drop()

    def _resign_for_space(self, error: LogFullError) -> None:
        """Resign: not even the reserve is there. Other programs took the disk's space while this node was down."""
        now = self._environment.now()
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + COMPLAINT_INTERVAL_S
            logger.warning(
                "node=%s event=cannot_lead error=%r consequence=%r",
                self._config.node_id,
                str(error),
                "it tries again until there is space",
            )
        self._engine.resign(now)

    def drop(self) -> None:
        """Drop all staged and proposed units. The machine is told of those that are not applied by then."""
        self._standing.successor = None
        self._completions.add(partial(self._report_dropped, [*self._backlog.drop(), *self._proposer.drop()]))

    def _report_dropped(self, staged: list[object]) -> None:
        self._feed.dropped([*self.contexts.drop(), *staged])

    @works_for(PROPOSE)
    def _seal(self) -> None:
        self._seal_scheduled = False
        self._driver.run(self._seal_now)

    def _seal_now(self) -> None:
        if not self._engine.accepts_proposals and self._proposer.is_open:
            self._completions.add(partial(self._feed.dropped, self._proposer.drop()))
        self._proposer.seal()

    def _propose(self, entry: SealedEntry) -> None:
        """Propose an entry.

        It waits for space behind other waiting entries, because each entry continues its predecessor.
        """
        if not self._backlog.entries and self._store.claim((entry.meta,), privileged=entry.privileged):
            self._propose_now(entry)
        else:
            self._backlog.add(entry)
            if len(self._backlog) == 1:
                self._wait_for_space()

    def _wait_for_space(self) -> None:
        entry = self._backlog.first
        self._reserver.wait((entry.meta,), partial(self._on_space, entry), privileged=entry.privileged)

    def _on_space(self, entry: SealedEntry, error: LogFullError | None) -> None:
        if not self._backlog or self._backlog.first is not entry:
            return  # the entry was dropped meanwhile
        if error is None:
            self._driver.run(self._propose_waiting)
        elif self._engine.own_term_committed:
            contexts = [*self._backlog.drop(), *self._proposer.drop()]
            self._completions.add(partial(self._feed.dropped, contexts, self.admission.disk_full_error()))
            self._driver.run(self._continue_handover)
        else:
            self._driver.run(partial(self._resign_for_space, error))

    def _propose_waiting(self) -> None:
        """Propose the waiting entries, as far as there is space."""
        while self._backlog:
            entry = self._backlog.first
            if not self._store.claim((entry.meta,), privileged=entry.privileged):
                self._wait_for_space()
                return
            self._propose_now(self._backlog.take())
        self._continue_handover()

    def _propose_now(self, entry: SealedEntry) -> None:
        self.contexts.add(entry.meta.index, entry.contexts)
        engine = self._engine
        try:
            engine.propose((entry.meta,), entry.data, self._environment.now())
            self._driver.execute(engine.take())
        except Exception as error:
            self._driver.fail(error)
            raise


class Roster:
    """Remembers the membership in force and logs how the next one differs."""

    def __init__(self, node_id: str, membership: Membership) -> None:
        self._node_id = node_id
        self._membership = membership

    def note_changed(self, membership: Membership) -> None:
        """Note and log that another membership is in force.

        An uncommitted membership may be replaced. The former one is then in force again, and noted here again.
        """
        previous, self._membership = self._membership, membership
        for member in membership.members:
            is_voter = member in membership.voters
            if member not in previous.members:
                self._log_change("voter_added" if is_voter else "learner_added", member)
            elif is_voter and member not in previous.voters:
                self._log_change("learner_promoted", member)
            elif not is_voter and member in previous.voters:
                self._log_change("voter_demoted", member)
        for member in previous.members:
            if member not in membership.members:
                self._log_change("member_removed", member)

    def _log_change(self, event: str, member: ReplicaId) -> None:
        logger.info(
            "node=%s event=%s member=%s incarnation=%s voters=%s",
            self._node_id,
            event,
            member.node_id,
            member.incarnation,
            ",".join(voter.node_id for voter in self._membership.voters),
        )
