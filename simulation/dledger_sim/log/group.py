"""The nodes of a simulated group: lives of a replica on a disk that outlives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from dledger.config import ReplicaConfig
from dledger.consensus.engine import EngineKind
from dledger.consensus.messages import Message
from dledger.engines.native import NATIVE
from dledger.errors import (
    ContradictionError,
    CorruptionError,
    LogError,
    LostDirectoryError,
    StateDivergedError,
    StorageError,
)
from dledger.loop_guard import excepted
from dledger.replica.boot import accept_loss
from dledger.replica.opening import IDENTITY_FORMAT, Opened, identity_to_leave, open_directory
from dledger.replica.replica import Replica
from dledger.store.identity import Identity, write_identity
from dledger.store.recovered import Recovered
from dledger.store.rewriting import Cut
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import Keep
from dledger.types import Membership, ReplicaId, SnapshotMeta
from dledger_sim.log.cores import core_of
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.invariants import Violation, Witness, require
from dledger_sim.log.life import DISK_ERRORS, Life, SimNode
from dledger_sim.log.network import Network, SimTransport
from dledger_sim.log.platter import Platter
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.service import Service
from dledger_sim.log.threads import Threads

__all__ = ["DISK_ERRORS", "KEEPS", "GroupSettings", "Life", "SimGroup", "SimNode"]

CLUSTER = "sim"
GROUP = "group"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a group is built; everything small, so that rolls, snapshots and catch-up happen all the time."""

    nodes: int = 3
    founders: int = 3
    """Nodes that are voters from the start; the others join as learners."""
    learners: int = 0
    """The last so many nodes, which stay learners."""
    flush: Literal["sync", "async"] = "sync"
    segment_bytes: int = 64 << 10
    snapshot_interval_ms: int = 300
    recent_bytes: int = 48 << 10
    sizes_window: int = 64
    """Entries whose sizes the core remembers: what lies before is sent by catch-up."""
    scrub_interval_ms: int = 2000
    max_uncommitted_bytes: int = 1 << 20
    call_cost_s: float = 0.0
    clock_drift: float = 0.01
    """Clocks run at rates of 1 ± this."""
    switch_share: float = 0.0
    """How often a disk call of blocking work lets something else run; 0: such work is done in one step."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(self.nodes))

    @property
    def learner_names(self) -> tuple[str, ...]:
        return self.names[self.nodes - self.learners :]


class SimGroup:
    """All nodes, and what can be done to them.  `Violation` is raised wherever a promise turns out to be broken.

    `serve` makes the service of each life of a node.  What replicas say to each other is judged if they say it in
    messages of `dledger.core`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        settings: GroupSettings,
        serve: Callable[[SimGroup, Life], Service],
        *,
        engine: EngineKind = NATIVE,
    ) -> None:
        self._engine = engine
        self.scheduler = scheduler
        self.random = random
        self.settings = settings
        self._serve = serve
        self.unreachable: set[str] = set()
        """Nodes that clients do not reach."""
        self.leaving: dict[str, Life] = {}
        """Nodes that are about to stop, and say so: no client comes, and those that are there go by and by."""
        self.kept_down: set[str] = set()
        """Nodes that nobody starts again for the moment."""
        self.clocks_jumped = False
        """Some wall clock has, at some time."""
        self.disks_filled = False
        """Some disk was full, at some time."""
        self.longest_pause_s = 0.0
        """A node stood still for so long: what it had been sent took effect so late."""
        self.restart: object | None = None
        """The rolling restart that goes on."""
        self.witness = Witness()
        self.witness.sync = settings.flush == "sync"
        self.threads: Threads | None = None
        if settings.switch_share:
            self.threads = Threads(Random(random.getrandbits(64)), settings.switch_share)
        self.network = Network(scheduler, Random(random.getrandbits(64)), settings.names)
        self.nodes = {name: self._make_node(name) for name in settings.names}
        self.trace: Callable[[str], None] | None = None
        self._bootstrap()

    def _make_node(self, name: str) -> SimNode:
        settings, random = self.settings, self.random
        config = ReplicaConfig(
            CLUSTER,
            GROUP,
            name,
            frozenset(settings.names),
            frozenset(settings.learner_names),
            settings.flush,
            segment_bytes=settings.segment_bytes,
            snapshot_interval_ms=settings.snapshot_interval_ms,
            recent_bytes=settings.recent_bytes,
            scrub_interval_ms=settings.scrub_interval_ms,
        )
        # Below what a configuration may say: what is small here is reached often.
        object.__setattr__(config, "max_uncommitted_bytes", settings.max_uncommitted_bytes)
        drift = settings.clock_drift
        return SimNode(
            name, self._new_disk(name), config, random.uniform(1 - drift, 1 + drift), random.uniform(0, 1000)
        )

    def _new_disk(self, name: str) -> SimDisk:
        disk = SimDisk(Random(self.random.getrandbits(64)))
        if self.threads is not None:
            disk.at_call = partial(self.threads.at_disk, name)
        return disk

    def _mint(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def _bootstrap(self) -> None:
        incarnations = {name: self._mint() for name in self.nodes}
        founders = self.settings.names[: self.settings.founders]
        initial = Membership(tuple(ReplicaId(name, incarnations[name]) for name in founders))
        self.witness.memberships.found(initial)
        for name, node in self.nodes.items():
            write_identity(
                node.disk,
                Identity(
                    IDENTITY_FORMAT,
                    CLUSTER,
                    GROUP,
                    name,
                    incarnations[name],
                    self.settings.segment_bytes,
                    initial if name in founders else None,
                    self._engine.name,
                ),
            )

    # ---------------------------------------------------------------- lives

    @property
    def running(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.life is not None]

    @property
    def leader(self) -> SimNode | None:
        """The ready leader of the highest term, if there is one."""
        ready = [(node.replica.engine.term, node) for node in self.running if node.replica and node.replica.is_ready]
        return max(ready, key=lambda item: item[0])[1] if ready else None

    def say(self, text: str) -> None:
        """One line for who traces this run."""
        if self.trace is not None:
            self.trace(f"{self.scheduler.now:9.4f} {text}")

    def start(self, name: str) -> bool:
        """Start a node; False if its directory cannot be opened for a reason that was injected.

        What has rotted may keep a directory from being opened, but no replica of one that was.
        """
        node = self.nodes[name]
        if node.life is not None:
            return True
        node.lives += 1
        platter = Platter(
            name,
            node.disk,
            self.settings.segment_bytes,
            is_rotten=lambda: node.rotten,
            excused_to=lambda: self.witness.forgotten_to(name) if node.rotten else 0,
        )
        node.disk.entered, node.disk.written = platter.entered, platter.written
        before, has_flipped_record = node.identity, node.has_flipped_record
        opened: Opened | None = None
        try:
            opened = open_directory(
                node.disk, node.config, self._mint, boot_id=f"boot-{node.boots}", name=name, engine=self._engine.name
            )
            life = self._live(node, opened, platter)
        except (LogError, OSError) as error:
            node.disk.entered = node.disk.written = None
            if node.losing_power:
                self._lose_power(node)
                return False
            node.disk.kill()
            if isinstance(error, LostDirectoryError):
                return self._come_back(node, error, excused=has_flipped_record)
            failing = (node.disk.is_full or node.failing_disk) and isinstance(error, DISK_ERRORS)
            if failing or (isinstance(error, LogError) and node.rotten and opened is None):
                self.say(f"{name} cannot start: {error}")
                return False
            raise Violation("a node starts after any crash", f"{name}: {error!r}") from error
        node.failing_disk = False
        for note in opened.notes + opened.recovery.notes:
            self.say(f"{name} notes: {note}")
        self._judge_start(node, opened, before, has_flipped_record=has_flipped_record)
        if node.loss_accepted:
            node.loss_accepted = False
            self.witness.loss_accepted(life, opened.recovery.last_index)
        self._join(node, life, opened)
        return True

    def accept_loss(self, name: str) -> None:
        """An operator has a node vote again whose host went down, although what it acknowledged may be missing."""
        self.say(f"the loss of {name} is accepted")
        self.kill(name)
        accept_loss(self.nodes[name].disk)
        self.nodes[name].loss_accepted = True
        self.start(name)

    def _come_back(self, node: SimNode, lost: LostDirectoryError, *, excused: bool) -> bool:
        """A node that lost what it promised waits for a leader that lists it; False if there is none now."""
        require(
            excused or node.rotten or node.lost_files,
            "a node loses nothing that no fault took from it",
            node=node.name,
            lost=str(lost),
        )
        leader = self.leader
        listed = leader is not None and leader.replica is not None and leader.replica.engine.membership
        if not listed or listed.find(node.name) is None:
            self.say(f"{node.name} waits for a leader: {lost}")
            return False
        self.say(f"{node.name} comes back as another incarnation: {lost}")
        leaves = partial(identity_to_leave, node.disk, node.config, self._mint, self._engine.name)
        if not self._set_aside(node, leaves):
            return False
        if excused:
            self.witness.amnesia(node.name)
        node.rotten = False
        return self.start(node.name)

    def _judge_start(self, node: SimNode, opened: Opened, before: Identity | None, *, has_flipped_record: bool) -> None:
        """What no fault has damaged is whole, and remembers who it is."""
        if not node.rotten:
            snapshots = [] if has_flipped_record else opened.snapshots.report.invalid
            damage = [*opened.recovery.corrupt_ranges, *snapshots]
            require(not damage, "what starts without injected rot is whole", node=node.name, damage=damage)
        require(
            node.rotten or node.lost_files or before is None or opened.identity == before,
            "a node whose files are whole is the member that it was",
            node=node.name,
            notes=opened.notes,
        )
        node.lost_files = False
        node.rotten_below = 0

    def _live(self, node: SimNode, opened: Opened, platter: Platter) -> Life:
        """The new life of a node, which takes no part yet."""
        me = ReplicaId(node.name, opened.identity.incarnation)

        def after_event() -> None:
            if node.losing_power:
                self._lose_power(node)
            elif node.life is life:
                self.witness.observe(life)
                if life.replica.failure is None:
                    platter.observe()
                    life.waiting.observe()

        def escaped(error: BaseException) -> None:
            if isinstance(error, Violation):
                raise error
            if not node.losing_power:
                raise Violation("no exception escapes into the event loop", f"{node.name}: {error!r}") from error

        environment = SimEnvironment(
            self.scheduler,
            Random(self.random.getrandbits(64)),
            after_event,
            escaped,
            clock_rate=node.clock_rate,
            clock_offset_s=node.clock_offset_s,
            call_cost_s=self.settings.call_cost_s,
            threads=self.threads,
            owner=node.name,
        )
        node.disk.loop = environment.loop.as_loop
        environment.wall_offset_ms = lambda: node.wall_wrong_by(self.scheduler.now)
        environment.sync_delay_s = lambda _lane: node.sync_delay_s * (0.2 + environment.random().random() * 1.8)

        def sent(to: str, message: Message) -> None:
            if self._engine.codec is NATIVE.codec:
                self.witness.sending(life, to, message)

        transport = SimTransport(self.network, me, sent)
        life = Life(node, environment, transport, me, platter)

        cut = opened.store.cut

        def truncating(first_index: int) -> Cut:
            self.witness.truncating(life, first_index)
            return cut(first_index)

        opened.store.cut = truncating  # type: ignore[method-assign]
        begin_replacing, add = opened.store.begin_replacing, opened.snapshots.add

        def replacing(base: SnapshotMeta) -> Callable[[], Recovered]:
            self.witness.replacing(life, base)
            return begin_replacing(base)

        opened.store.begin_replacing = replacing  # type: ignore[method-assign]

        def adding(meta: SnapshotMeta) -> None:
            platter.listed(meta)
            self.witness.snapshot_listed(life, meta)
            add(meta)

        opened.snapshots.add = adding  # type: ignore[method-assign]

        def failed(error: BaseException) -> None:
            environment.call_soon(lambda: self._replica_failed(life, error))

        life.serving = self._serve(self, life)
        replica = Replica(
            node.config, opened, environment, transport, life.machine, engine=self._engine, on_failure=failed
        )
        if self._engine.codec is NATIVE.codec:
            core_of(replica).table.window = self.settings.sizes_window
        life.run(replica)
        return life

    def _join(self, node: SimNode, life: Life, opened: Opened) -> None:
        node.life = life
        replica = life.replica
        self.say(
            f"{node.name} starts: term {replica.engine.term}, entries {opened.recovery.first_index} to"
            f" {opened.recovery.last_index}, commit {opened.commit_index}"
        )
        life.platter.open(replica.store, opened.hard_state)
        self.witness.started(life)
        self.network.join(life)
        life.environment.call_soon(life.service.start)
        replica.start()
        self.witness.observe(life)

    def _replica_failed(self, life: Life, error: BaseException) -> None:
        """What a process does whose replica failed: it exits.  Only what was injected may end one."""
        node = life.node
        if node.losing_power or node.life is not life:
            return
        self.say(f"{node.name} fails: {error!r}")
        failing = node.failing_disk and isinstance(error, DISK_ERRORS)
        astray = isinstance(error, ContradictionError) and self.witness.losses.are_possible
        if not (failing or astray or (node.rotten and isinstance(error, CorruptionError))):
            raise Violation("a replica fails only when its disk does", f"{node.name}: {error!r}") from error
        self.kill(node.name)
        if isinstance(error, ContradictionError | StateDivergedError):
            # A loss of power in the middle of this leaves half of each incarnation: the node waits for a leader then.
            node.lost_files = True
            self._set_aside(node, lambda: life.replica.identity)

    def _set_aside(self, node: SimNode, identity: Callable[[], Identity]) -> bool:
        """Have a node become another incarnation; False if its disk fails, or its power, in the middle of that."""
        done = node.set_aside(identity, self._mint)
        if node.losing_power:
            self._lose_power(node)
        return done

    def _lose_power(self, node: SimNode) -> None:
        node.losing_power = False
        node.disk.faults.clear()
        # With everything kept it is a process that is killed in the middle of its work.
        self.crash(node.name, self.random.choice(("random", "random", "all")))

    def kill(self, name: str) -> None:
        """SIGKILL: the process is gone, what it wrote stays."""
        life = self.nodes[name].life
        self._end(name)
        if life is not None:
            self._hang_up(life)
        self.nodes[name].disk.kill()

    def crash(self, name: str, keep: Keep) -> None:
        """Power loss: what was not synced is lost as `keep` says."""
        self._end(name)
        self.witness.power_lost(name)
        self.nodes[name].boots += 1
        self.nodes[name].disk.crash(self.random, keep)

    def _end(self, name: str) -> None:
        node = self.nodes[name]
        life, node.life = node.life, None
        node.disk.entered = node.disk.written = None
        if life is not None:
            life.environment.kill()
            self.network.leave(name)
            self.witness.ended(life)
            for callback in life.on_ended:
                callback()

    @staticmethod
    def _hang_up(life: Life) -> None:
        for callback in life.on_killed:
            callback()

    def wipe(self, name: str) -> None:
        """Lose the whole directory."""
        self._end(name)
        node = self.nodes[name]
        self.witness.amnesia(name)
        node.disk = self._new_disk(name)
        node.rotten = False

    def stop(self, name: str) -> None:
        """An orderly stop, which may take a while."""
        life = self.nodes[name].life
        if life is not None and not life.stopping:
            life.stopping = True
            life.environment.call_soon(lambda: life.service.stop(lambda: self._stopped(life)))

    def _stopped(self, life: Life) -> None:
        node = life.node
        if node.life is not life:
            return
        life.replica.stop()
        life.waiting.require_nothing("when their replica stops")
        life.environment.close()
        self._end(node.name)
        self._hang_up(life)
        try:
            with excepted("nothing is served any more"):
                life.replica.close(clean=life.replica.failure is None)
        except StorageError:
            if not (node.failing_disk or node.losing_power):
                raise
        if node.losing_power:
            self._lose_power(node)
        else:
            node.disk.kill()

    # ---------------------------------------------------------------- judging

    @property
    def damaged(self) -> bool:
        """Some node is down because of bit rot, or knows that it lacks entries because of it."""
        return any(node.damaged for node in self.nodes.values())

    def can_spare(self, name: str) -> bool:
        """Whether the others can elect a leader who takes a node back that has forgotten everything."""
        leader = self.leader
        if leader is None or leader.replica is None:
            return False
        voters = leader.replica.engine.membership.voters
        return len(voters) > 2 or all(voter.node_id != name for voter in voters)

    @property
    def rotten(self) -> bool:
        """Bits of some disk were flipped: what it serves may be wrong until its scrub has found out."""
        return any(node.rotten for node in self.nodes.values())

    @property
    def was_flipped(self) -> bool:
        """A bit of some small file was flipped at some time: nodes say so when they find that."""
        return any(node.flipped is not None for node in self.nodes.values())

    @property
    def paused_until(self) -> float:
        """When the last of the nodes that stand still goes on; a moment that has passed if all go on."""
        return max((node.life.environment.paused_until for node in self.running if node.life is not None), default=0.0)

    def healthy(self) -> bool:
        """Every node runs, is a voter, leads or follows the ready leader, and has applied everything."""
        leader = self.leader
        if leader is None or leader.replica is None:
            return False
        head, stay = leader.replica, self.settings.learner_names
        membership = head.engine.membership
        if any(learner.node_id not in stay for learner in membership.learners) or not head.engine.can_change_membership:
            return False
        caught_up = (node.has_caught_up(head, stays_learner=node.name in stay) for node in self.nodes.values())
        return all(caught_up) and len(membership.members) == len(self.nodes)


KEEPS: tuple[Keep, ...] = ("none", "random", "all")
