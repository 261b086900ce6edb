"""Leader's part of a replica: stage units, propose entries, change the membership, hand over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.errors import BusyError, LogFullError
from dledger.loop_holds import PROPOSE
from dledger.replica.admission import Admission
from dledger.replica.backlog import Backlog
from dledger.replica.completions import Completions
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.proposer import Contexts, Fill, Proposer, SealedEntry, check_room
from dledger.replica.reserving import Reserver
from dledger.replica.roster import Roster
from dledger.replica.snapshotting import Snapshotting
from dledger.replica.standing import not_leader
from dledger.store.log import LogStore
from dledger.types import EntryKind, Membership, ReplicaId, Role

COMPLAINT_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)


class Leading:
    """Proposals of this replica, from staging to being applied or lost track of.

    `connected` maps node ids to the incarnation that can be sent to.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        environment: Environment,
        store: LogStore,
        reserver: Reserver,
        feed: MachineFeed,
        completions: Completions,
        snapshotting: Snapshotting,
        connected: Mapping[str, ReplicaId],
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._config = config
        self._environment = environment
        self._proposing = environment.holds.part(PROPOSE)
        self._reserver = reserver
        self._backlog = Backlog(store)
        self._store = store
        self._feed = feed
        self._completions = completions
        self._snapshotting = snapshotting
        self._connected = connected
        self._engine = engine
        self._driver = driver
        self._committed_end = store.first_position
        """Where the last committed entry ends."""
        self._seal_scheduled = False
        self._was_leader = False
        self._complain_at = float("-inf")
        self._handing_over = False
        self._heir: ReplicaId | None = None
        """Who is to lead once what waits for space is written."""
        self.on_handover: list[Callable[[], None]] = []
        """Called before a handover begins, to stage what the service still holds back."""
        self.contexts = Contexts()
        self.admission = Admission(config, store, reserver, self._backlog, snapshotting, engine)
        self.roster = Roster(config.node_id, engine.membership)
        self._proposer = Proposer(
            segment_bytes=config.segment_bytes,
            next_position=self.admission.next_position,
            last=self._last,
            sealed=self._propose,
            wants_mark=snapshotting.wanted,
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
        """Put a unit into this turn's entry; see `dledger.node.Node.stage`.

        `privileged` units may use the space that is kept back for when the disk is full. Digests, which are the log's
        `own`, are taken although states differ: they tell when that is over.
        """
        self._completions.require_outside("stage")
        if not self._driver.is_ready:
            raise not_leader(self._engine)
        if not self._handing_over:
            check_room(self.end_position - self._committed_end, self._config.max_uncommitted_bytes)
        if not own:
            self.admission.require_agreement()
        with self._completions.executing:
            position = self._proposer.stage(self._engine.term, size, fill, commands, context, privileged=privileged)
        if not self._seal_scheduled:
            self._seal_scheduled = True
            self._environment.call_soon(self._seal)
        return position

    @property
    def end_position(self) -> int:
        """Where the log ends once everything that is sealed is written."""
        return self._backlog.end_position

    def committed(self, index: int) -> None:
        """Entries up to `index` wait for a majority no more."""
        held = self._store.held_meta(index)
        if held is not None:  # else it is an old one: a leader, whom this bounds, holds what it has proposed last
            self._committed_end = held.end

    def replaced(self, position: int) -> None:
        """The log is an empty one that begins at `position`."""
        self._committed_end = position

    def change_membership(self, membership: Membership) -> None:
        """Propose another membership; at most one voter may differ."""
        if not self._driver.is_ready or not self._engine.can_change_membership:
            raise not_leader(self._engine)
        self._seal_now()
        if self._backlog:  # it may hold a membership already
            raise BusyError(f"{len(self._backlog)} entries wait for space: try again later")
        self._propose(self._proposer.control_entry(EntryKind.MEMBERSHIP, self._engine.term, membership))

    def transfer(self, to: ReplicaId | None) -> bool:
        """Hand leadership to a voter, by default the one with the most of the log; False if there is none.

        What the service holds back goes ahead into the log: the successor is asked to take over once it has all that
        is staged by then, and the handover is given up if that takes too long.
        """
        engine = self._engine
        if not engine.is_leader:
            return False
        if self._heir is not None:
            return True
        if to is None:
            candidates = [
                (progress.match_index, peer)
                for peer, progress in engine.progress.items()
                if peer in engine.membership.voters and progress.healthy and peer.node_id in self._connected
            ]
            if not candidates:
                return False
            to = max(candidates)[1]
        self._flush()
        self._seal_now()
        if self._backlog:
            self._heir = to
            return True
        return engine.transfer(to, self._environment.now())

    @property
    def hands_over(self) -> bool:
        """Whether another voter is to lead."""
        return self._heir is not None or self._engine.transfer_to is not None

    def _hand_over(self) -> None:
        """Nothing waits for space any more: go on with a handover."""
        heir, self._heir = self._heir, None
        if heir is not None:
            self._engine.transfer(heir, self._environment.now())

    def _flush(self) -> None:
        """Have the service stage what it holds back, however many bytes wait for a majority: it is little, once."""
        self._completions.require_outside("a handover")
        if not self._driver.is_ready:
            return
        self._handing_over = True
        try:
            for hook in self.on_handover:
                hook()
        finally:
            self._handing_over = False

    def role_changed(self, role: Role) -> None:
        """A new leader proposes its no-op; one that was loses track of what it proposed."""
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

    def _cannot_lead(self, error: LogFullError) -> None:
        """Not even the reserve is there, because somebody else took the disk's space while this node was down."""
        now = self._environment.now()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_INTERVAL_S
            logger.warning(
                "node=%s event=cannot_lead error=%r consequence=%r",
                self._config.node_id,
                str(error),
                "it tries again until there is space",
            )
        self._engine.resign(now)

    def drop(self) -> None:
        """Lose track of what is staged, and of everything proposed that is not applied before the machine is told."""
        self._heir = None
        self._completions.add(partial(self._lose_track, [*self._backlog.drop(), *self._proposer.drop()]))

    def _lose_track(self, staged: list[object]) -> None:
        self._feed.dropped([*self.contexts.drop(), *staged])

    def _seal(self) -> None:
        self._seal_scheduled = False
        with self._proposing:
            self._driver.run(self._seal_now)

    def _seal_now(self) -> None:
        if self._proposer.is_open and not self._engine.accepts_proposals:
            self._completions.add(partial(self._feed.dropped, self._proposer.drop()))
        self._proposer.seal()

    def _last(self) -> tuple[int, int]:
        return self._backlog.last

    def _propose(self, entry: SealedEntry) -> None:
        """Propose an entry, or have it wait for space: behind others, for each continues the one before."""
        if not self._backlog and self._reserver.claim((entry.meta,), privileged=entry.privileged):
            self._propose_now(entry)
        else:
            self._backlog.add(entry)
            if len(self._backlog) == 1:
                self._wait_for_space()

    def _wait_for_space(self) -> None:
        entry = self._backlog.first
        self._reserver.wait((entry.meta,), partial(self._waited, entry), privileged=entry.privileged)

    def _waited(self, entry: SealedEntry, error: LogFullError | None) -> None:
        if not self._backlog or self._backlog.first is not entry:
            return  # it was dropped meanwhile
        if error is None:
            self._driver.run(self._go_on)
        elif self._engine.own_term_committed:
            contexts = [*self._backlog.drop(), *self._proposer.drop()]
            self._completions.add(partial(self._feed.dropped, contexts, self.admission.own_disk_is_full()))
            self._driver.run(self._hand_over)
        else:
            self._driver.run(partial(self._cannot_lead, error))

    def _go_on(self) -> None:
        """Propose what waits, as far as there is space."""
        while self._backlog:
            entry = self._backlog.first
            if not self._reserver.claim((entry.meta,), privileged=entry.privileged):
                self._wait_for_space()
                return
            self._propose_now(self._backlog.take())
        self._hand_over()

    def _propose_now(self, entry: SealedEntry) -> None:
        self.contexts.add(entry.meta.index, entry.contexts)
        engine = self._engine
        try:
            engine.propose((entry.meta,), entry.data, self._environment.now())
            self._driver.execute(engine.take())
        except Exception as error:
            self._driver.fail(error)
            raise
