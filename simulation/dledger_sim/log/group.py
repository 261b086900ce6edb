"""Nodes of a simulated group: lives of a replica on a disk that outlives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from dledger.config import ReplicaConfig
from dledger.consensus.engine import EngineKind
from dledger.consensus.messages import Message
from dledger.engines.named import NATIVE
from dledger.errors import (
    ContradictionError,
    CorruptionError,
    LogError,
    LostDirectoryError,
    StateDivergedError,
    StorageError,
)
from dledger.replica.replica import Replica
from dledger.replica.start.boot import accept_loss
from dledger.replica.start.opening import IDENTITY_FORMAT, Opened, lost_directory_identity, open_directory
from dledger.store.identity import Identity, write_identity
from dledger.store.recovered import Recovered
from dledger.store.rewriting import Cut
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import Keep
from dledger.types import Membership, ReplicaId, SnapshotMeta
from dledger_base.loop_guard import excepted
from dledger_sim.log.cores import core_of
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.group_settings import GroupSettings
from dledger_sim.log.invariants import Violation, Witness, require
from dledger_sim.log.life import DISK_ERRORS, Life, SimNode
from dledger_sim.log.network import Network, SimTransport
from dledger_sim.log.platter import Platter
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.service import Service
from dledger_sim.log.threads import Threads
from dledger_sim.log.unsynced import Unsynced

__all__ = ["DISK_ERRORS", "GroupSettings", "Life", "SimGroup", "SimNode"]

CLUSTER = "sim"
GROUP = "group"


class SimGroup:
    """Group of simulated nodes, with everything that can be done to them.

    `Violation` is raised at the place where a broken promise is found. `serve` makes the service of each life of a
    node. Messages between replicas are judged only if they are messages of `dledger.core`.
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
        self._make_service = serve
        self.unreachable: set[str] = set()
        """Nodes that clients do not reach."""
        self.leaving: dict[str, Life] = {}
        """Nodes that are about to stop and say so: no new client connects, and connected clients leave over time."""
        self.kept_down: set[str] = set()
        """Nodes that must not be started again for now."""
        self.clocks_jumped = False
        """True once any node's wall clock has jumped."""
        self.disks_filled = False
        """True once any node's disk was full."""
        self.disks_crowded = False
        """True once files of other programs have taken disk space, perhaps all of it."""
        self.longest_pause_s = 0.0
        """Longest pause of a node so far, in seconds. Messages sent to it may take effect this late."""
        self.on_over: list[Callable[[], None]] = []
        """Callbacks for the end of the run, after success and failure alike."""
        self.restart: object | None = None
        """The rolling restart that is under way."""
        self.witness = Witness()
        self.witness.sync = settings.flush == "sync"
        self._unsynced = Unsynced()
        self.threads: Threads | None = None
        if settings.switch_share:
            self.threads = Threads(Random(random.getrandbits(64)), settings.switch_share, self._is_hanging)
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
            heartbeat_ms=settings.heartbeat_ms,
            election_min_ms=settings.election_min_ms,
            election_max_ms=settings.election_max_ms,
            reserve_bytes=settings.reserve_bytes,
            snapshot_interval_ms=settings.snapshot_interval_ms,
            recent_bytes=settings.recent_bytes,
            scrub_interval_ms=settings.scrub_interval_ms,
            max_open_segments=settings.max_open_segments,
        )
        # These limits are lower than a configuration allows, so that runs reach them often.
        object.__setattr__(config, "max_uncommitted_bytes", settings.max_uncommitted_bytes)
        drift = settings.clock_drift
        return SimNode(
            name, self._make_disk(name), config, random.uniform(1 - drift, 1 + drift), random.uniform(0, 1000)
        )

    def _make_disk(self, name: str) -> SimDisk:
        disk = SimDisk(Random(self.random.getrandbits(64)))
        disk.max_files = self.settings.max_files
        disk.names.in_order = self.settings.names_in_order
        disk.drops_failed_pages = self.settings.drops_failed_pages
        if self.threads is not None:
            disk.at_call = partial(self.threads.at_disk, name)
        return disk

    def _is_hanging(self, name: str, operation: str, path: str) -> bool:
        hung = self.nodes[name].hung_call
        return hung is not None and hung[0] == operation and path.startswith(hung[1])

    def _make_incarnation(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def _bootstrap(self) -> None:
        incarnations = {name: self._make_incarnation() for name in self.nodes}
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
        """The ready leader of the highest term, or None."""
        ready = [(node.replica.engine.term, node) for node in self.running if node.replica and node.replica.is_ready]
        return max(ready, key=lambda item: item[0])[1] if ready else None

    def say(self, text: str) -> None:
        """Write a line to the trace of this run."""
        if self.trace is not None:
            self.trace(f"{self.scheduler.now:9.4f} {text}")

    def start(self, name: str) -> bool:
        """Start a node. Return False if its directory cannot be opened because of an injected fault.

        Rot may prevent the directory from being opened. It must not prevent a replica from starting once the directory
        is open.
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
        flipped_snapshot = node.flipped_snapshot if has_flipped_record else 0
        opened: Opened | None = None
        try:
            opened = open_directory(
                node.disk,
                node.config,
                self._make_incarnation,
                boot_id=f"boot-{node.boots}",
                name=name,
                engine=self._engine.name,
            )
            life = self._begin_life(node, opened, platter)
        except (LogError, OSError) as error:
            node.disk.entered = node.disk.written = None
            if node.losing_power:
                self._lose_power(node)
                return False
            node.disk.kill()
            self._judge_lost_sync(node)
            if isinstance(error, LostDirectoryError):
                return self._rejoin(node, error, excused=has_flipped_record)
            failing = (node.disk.lacks_space or node.failing_disk) and isinstance(error, DISK_ERRORS)
            if failing or (isinstance(error, LogError) and node.rotten and opened is None):
                self.say(f"{name} cannot start: {error}")
                return False
            raise Violation("a node starts after any crash", f"{name}: {error!r}") from error
        node.failing_disk = False
        for note in opened.notes + opened.recovery.notes:
            self.say(f"{name} notes: {note}")
        if any(found.end <= flipped_snapshot for found in opened.recovery.corrupt_ranges):
            # A crash interrupted a trim, and only the rotten snapshot says that these segments were partly trimmed.
            node.rotten = True
            self.witness.amnesia(name)
        self._judge_start(node, opened, before, has_flipped_record=has_flipped_record)
        if node.loss_accepted:
            node.loss_accepted = False
            self.witness.loss_accepted(life, opened.recovery.last_index)
        self._join(node, life, opened)
        return True

    def accept_loss(self, name: str) -> None:
        """Act as an operator who lets a node vote after a power loss, although acknowledged entries may be missing."""
        self.say(f"the loss of {name} is accepted")
        self.kill(name)
        accept_loss(self.nodes[name].disk)
        self.nodes[name].loss_accepted = True
        self.start(name)

    def _rejoin(self, node: SimNode, lost: LostDirectoryError, *, excused: bool) -> bool:
        """Bring a node that lost its promises back as a new incarnation.

        A leader must list the node; return False without one.
        """
        require(
            excused or node.rotten or node.lost_files,
            "a node loses no data without a fault",
            node=node.name,
            lost=str(lost),
        )
        leader = self.leader
        listed = leader is not None and leader.replica is not None and leader.replica.engine.membership
        if not listed or listed.find(node.name) is None:
            self.say(f"{node.name} waits for a leader: {lost}")
            return False
        self.say(f"{node.name} comes back as another incarnation: {lost}")
        leaves = partial(lost_directory_identity, node.disk, node.config, self._make_incarnation, self._engine.name)
        if not self._set_aside(node, leaves):
            return False
        if excused:
            self.witness.amnesia(node.name)
        node.rotten = False
        return self.start(node.name)

    def _judge_start(self, node: SimNode, opened: Opened, before: Identity | None, *, has_flipped_record: bool) -> None:
        """Check that undamaged files are whole and that the node is still the same member."""
        if not node.rotten:
            snapshots = [] if has_flipped_record else opened.snapshots.report.invalid
            damage = [*opened.recovery.corrupt_ranges, *snapshots]
            require(
                not damage, "a node that starts without injected rot has undamaged files", node=node.name, damage=damage
            )
        require(
            node.rotten or node.lost_files or before is None or opened.identity == before,
            "a node with undamaged files is still the same member",
            node=node.name,
            notes=opened.notes,
        )
        node.lost_files = False
        node.rotten_below = 0

    def _begin_life(self, node: SimNode, opened: Opened, platter: Platter) -> Life:
        """Return a new life of a node. It does not take part in the group yet."""
        me = ReplicaId(node.name, opened.identity.incarnation)

        def after_event() -> None:
            if node.losing_power:
                self._lose_power(node)
            elif node.life is life:
                self.witness.observe(life)
                if self.settings.flush == "async":
                    self._unsynced.observe(life)
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
        environment.hangs = lambda lane: lane in node.hung_lanes
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

        life.serving = self._make_service(self, life)
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
        """Act as a process whose replica failed: exit. Only an injected fault may end a replica."""
        node = life.node
        if node.losing_power or node.life is not life:
            return
        self.say(f"{node.name} fails: {error!r}")
        failing = node.failing_disk and isinstance(error, DISK_ERRORS)
        astray = isinstance(error, ContradictionError) and self.witness.losses.are_possible
        if not (failing or astray or (node.rotten and isinstance(error, CorruptionError))):
            raise Violation("a replica fails only if its disk fails", f"{node.name}: {error!r}") from error
        self.kill(node.name)
        if isinstance(error, ContradictionError | StateDivergedError):
            # A power loss during this leaves half of each incarnation. Such a node waits for a leader.
            node.lost_files = True
            self._set_aside(node, lambda: life.replica.own_group.directory)

    def _set_aside(self, node: SimNode, identity: Callable[[], Identity]) -> bool:
        """Make a node a new incarnation. Return False if its disk or its power fails meanwhile."""
        done = node.set_aside(identity, self._make_incarnation)
        if node.losing_power:
            self._lose_power(node)
        return done

    def _lose_power(self, node: SimNode) -> None:
        node.losing_power = False
        node.disk.faults.clear()
        # With everything kept, this is the same as a process that is killed in the middle of its work.
        self.crash(node.name, self.random.choice(("random", "random", "all")))

    def kill(self, name: str) -> None:
        """Kill the process (SIGKILL). Its files keep everything that was written."""
        life = self.nodes[name].life
        self._end_life(name)
        if life is not None:
            self._hang_up(life)
        self.nodes[name].disk.kill()

    def crash(self, name: str, keep: Keep) -> None:
        """Cut the power. Bytes that were not synced are lost as `keep` says."""
        self._end_life(name)
        self.witness.power_lost(name)
        self.nodes[name].boots += 1
        self.nodes[name].disk.crash(self.random, keep)

    def _judge_lost_sync(self, node: SimNode) -> None:
        """Have a failed sync judged as a power loss: reads may show what was there before."""
        if node.has_lost_sync:
            node.has_lost_sync = False
            self.witness.power_lost(node.name)

    def _end_life(self, name: str) -> None:
        node = self.nodes[name]
        life, node.life = node.life, None
        node.disk.entered = node.disk.written = None
        self._judge_lost_sync(node)
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
        self._end_life(name)
        node = self.nodes[name]
        self.witness.amnesia(name)
        node.disk = self._make_disk(name)
        node.rotten = False

    def stop(self, name: str) -> None:
        """Stop a node in an orderly way, which may take a while."""
        life = self.nodes[name].life
        if life is not None and not life.stopping:
            life.stopping = True
            life.environment.call_soon(lambda: life.service.stop(lambda: self._finish_stop(life)))

    def _finish_stop(self, life: Life) -> None:
        node = life.node
        if node.life is not life:
            return
        life.replica.stop()
        life.waiting.require_nothing("when their replica stops")
        life.environment.close()
        self._end_life(node.name)
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
        """True if a node is down because of bit rot, or knows that rot has taken entries from it."""
        return any(node.damaged for node in self.nodes.values())

    def can_spare(self, name: str) -> bool:
        """Return whether the others can elect a leader who takes this node back after it has forgotten everything."""
        leader = self.leader
        if leader is None or leader.replica is None:
            return False
        voters = leader.replica.engine.membership.voters
        return len(voters) > 2 or all(voter.node_id != name for voter in voters)

    @property
    def rotten(self) -> bool:
        """True if bits of any disk were flipped. Such a disk may serve wrong bytes until its scrub has found them."""
        return any(node.rotten for node in self.nodes.values())

    @property
    def was_flipped(self) -> bool:
        """True if a bit of any small file was ever flipped. Nodes log an error when they find that."""
        return any(node.flipped is not None for node in self.nodes.values())

    @property
    def paused_until(self) -> float:
        """Moment at which the last paused node continues. It is in the past if no node is paused."""
        return max((node.life.environment.paused_until for node in self.running if node.life is not None), default=0.0)

    def healthy(self) -> bool:
        """Return whether all nodes are up, have their role, follow the ready leader and have applied everything."""
        leader = self.leader
        if leader is None or leader.replica is None:
            return False
        head, stay = leader.replica, self.settings.learner_names
        membership = head.engine.membership
        if any(learner.node_id not in stay for learner in membership.learners) or not head.engine.can_change_membership:
            return False
        caught_up = (node.has_caught_up(head, stays_learner=node.name in stay) for node in self.nodes.values())
        return all(caught_up) and len(membership.members) == len(self.nodes)
