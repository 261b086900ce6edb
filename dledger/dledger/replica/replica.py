"""The driver of one replica (`dledger.replica.driver` is what its parts see of it).

It owns the store and the engine, carries out the engine's effects in order, and joins them to the state machine.  All
methods are called on one event loop; an exception that escapes an effect ends the replica (`failure`), because what is
half done must not be built upon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.effects import (
    AppendEntries,
    Commit,
    Effect,
    MembershipChanged,
    Output,
    ReadsFailed,
    ReadsReady,
    ResetLog,
    RoleChanged,
    SaveHardState,
    SendCatchUp,
    SendEntries,
    SendMessage,
    SendSnapshot,
    Truncate,
)
from dledger.consensus.engine import EngineKind
from dledger.consensus.messages import Message
from dledger.environment import Environment
from dledger.errors import ContradictionError, NotLeaderError
from dledger.format import link
from dledger.invariants import invariant
from dledger.loop_holds import HOUSEKEEPING, TICK
from dledger.net.transport import Transport
from dledger.replica.applier import Applier
from dledger.replica.completions import Completions
from dledger.replica.feed import MachineFeed
from dledger.replica.flusher import SLOW_SYNC_S, Flusher
from dledger.replica.forgetting import Forgetter
from dledger.replica.housekeeping import Housekeeping
from dledger.replica.inbox import Inbox
from dledger.replica.lateness import TimedLoop
from dledger.replica.leading import Leading
from dledger.replica.opening import Opened
from dledger.replica.outbox import Outbox
from dledger.replica.proposer import Fill
from dledger.replica.reads import ReadWaiters
from dledger.replica.recent import RecentEntries
from dledger.replica.removal import Remover
from dledger.replica.repair import Repairer
from dledger.replica.reserving import Reserver
from dledger.replica.rewriting import Rewriter
from dledger.replica.saver import HardStateSaver
from dledger.replica.snapshotter import Snapshotter
from dledger.replica.snapshotting import DIGEST_CHANNEL, Snapshotting
from dledger.replica.standing import StandingTeller, not_leader
from dledger.replica.transfer import SNAPSHOT_CHANNEL
from dledger.replica.upkeep import CHANNELS as UPKEEP_CHANNELS
from dledger.replica.upkeep import Upkeep
from dledger.statemachine import Restore, StateMachine
from dledger.types import EntryMeta, Membership, ReplicaId, Role, SnapshotMeta

TICKS_PER_HEARTBEAT = 2
HOUSEKEEPING_S = 0.25
STALLED_S = 1.0
"""A leader hands over if it could not read what it is to apply for so long."""


class Replica:
    """One member of a group.  Call `start` once a transport can send, `stop` at the end."""

    def __init__(
        self,
        config: ReplicaConfig,
        opened: Opened,
        environment: Environment,
        transport: Transport,
        state_machine: StateMachine,
        *,
        engine: EngineKind,
        on_failure: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.identity = opened.identity
        self.me = ReplicaId(config.node_id, opened.identity.incarnation)
        self.environment = environment
        self.timed_loop = TimedLoop(environment)
        self._ticking = environment.holds.part(TICK)
        self._keeping_house = environment.holds.part(HOUSEKEEPING)
        self.transport = transport
        self.store = opened.store
        self.snapshots = opened.snapshots
        self.failure: BaseException | None = None
        self.elections = 0
        self._on_failure = on_failure
        self._stopped = False
        self._pumping = False
        self.engine = opened.make_engine(engine, config, environment)
        self._make_parts(opened, state_machine)

    def _make_parts(self, opened: Opened, machine: StateMachine) -> None:
        """The parts, each made from those before it; the machine is given its state among them."""
        config, environment, transport, engine = self.config, self.environment, self.transport, self.engine
        store, snapshots = self.store, self.snapshots
        connected: dict[str, ReplicaId] = {}

        self._completions = Completions(self.fail)
        self._feed = MachineFeed(machine, store, snapshots, self._completions)
        self._recent = RecentEntries(config.recent_bytes)
        self.flusher = Flusher(environment, store, self._completions, engine, self, sync=config.flush == "sync")
        remover = Remover(environment, store, self.flusher, self)
        reserver = Reserver(environment, store, self)
        self._snapshotter = Snapshotter(environment, store, snapshots, remover, engine, self)
        self._snapshotting = Snapshotting(
            self.me, environment, transport, store, snapshots, self._snapshotter, machine, engine, self,
            interval_s=config.snapshot_interval_ms / 1000,
        )  # fmt: skip
        self.leading = Leading(
            config, environment, store, reserver, self._feed, self._completions, self._snapshotting, connected, engine,
            self,
        )  # fmt: skip
        self._outbox = Outbox(
            environment, transport, store, snapshots, self._recent, connected, self.leading, engine, self
        )
        self._saver = HardStateSaver(environment, opened.hard_state_file, self._outbox, engine, self)
        self._reads = ReadWaiters(environment, engine, self)
        self._standing = StandingTeller(self._completions, self._feed, engine, self)
        self._inbox = Inbox(environment, transport, store, reserver, self._feed, self._outbox, engine, self)
        self.rewriter = Rewriter(store, self._recent, self.flusher, self._inbox, engine, self)
        self.housekeeper = Housekeeping(
            config, opened, environment, self._snapshotting, reserver, self.leading, connected, engine, self
        )

        applied_index = self._feed.restore(opened.recovery.base)
        self._snapshotting.restored(self._feed.state_index)
        self._applier = Applier(
            environment, store, self._recent, self.leading.contexts, self._completions, self._feed, self._snapshotting,
            self._reads, self._standing, engine, self, applied_index=applied_index,
        )  # fmt: skip
        forgetter = Forgetter(
            config.node_id, environment, store, snapshots, self._snapshotter, self._feed, self._applier, self
        )
        self.repairer = Repairer(
            config.node_id, environment, transport, store, connected, self._applier, forgetter, engine, self,
            rest_s=config.scrub_interval_ms / 1000,
        )  # fmt: skip
        self.upkeep = Upkeep(
            config, opened, environment, transport, connected, self.repairer, remover, self.flusher, self._reads,
            self._applier, self._snapshotter, engine, self,
        )  # fmt: skip

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to take part."""
        self._applier.advance(self.engine.commit_index)
        self._tick()
        self._keep_house()
        self.pump()

    def stop(self) -> None:
        """Take part no more; what is staged or not applied is dropped."""
        if not self._stopped:
            self._stopped = True
            self.flusher.stop()
            self._saver.stop()
            self._applier.halt()
            self.leading.drop()
            stopping = NotLeaderError(None, self.engine.term, "this node is stopping")
            self._completions.add(partial(self._reads.fail, stopping))
            self._snapshotter.abandon()
            self._inbox.receiver.abandon()
            self._outbox.stop()
            self.upkeep.stop()
            if self._completions.executing.depth:  # a write failed inside `stage`, say: nothing runs them after that
                self.environment.call_soon(self._completions.run)
            else:
                self._completions.run()

    def close(self, *, clean: bool) -> None:
        """Close the files of a stopped replica; one in doubt does not stop clean: it stays in doubt."""
        if (clean := clean and self.engine.may_vote) and not self.rewriter.active:
            # While the log is rewritten, entries stand there that the engine has replaced; others may be committed.
            self.store.save_commit(min(self.engine.commit_index, self.store.durable))
        self.upkeep.close()
        self.store.close(clean=clean)
        self._saver.close()

    def fail(self, error: BaseException) -> None:
        """End this replica: `error` leaves no safe way on."""
        if self.failure is None and not self._stopped:
            self.failure = error
            self.stop()
            self._on_failure(error)

    def _guarded(self, work: Callable[[], object]) -> None:
        if self._stopped:
            return
        try:
            work()
        except Exception as error:
            self.fail(error)

    def run(self, work: Callable[[], object]) -> None:
        """Do something that gives the engine work, and carry out what it makes of it, unless this replica stopped."""
        if not self._stopped:
            self._guarded(work)
            self.pump()

    def _tick(self) -> None:
        if self._stopped:
            return
        self.timed_loop.call_later(self.config.heartbeat_ms / 1000 / TICKS_PER_HEARTBEAT, self._tick)
        with self._ticking:
            self._guarded(self._on_tick)

    def _on_tick(self) -> None:
        engine = self.engine
        if self.rewriter.active:
            return  # what has arrived is stepped first, for a follower that hears nobody would campaign
        engine.healthy = self.flusher.outstanding_s < SLOW_SYNC_S and self._applier.stalled_s < STALLED_S
        engine.tick(self.environment.now())
        self.flusher.tick()
        if not engine.healthy and engine.is_leader and not self.leading.hands_over:
            self.transfer(None)
        self.pump()

    def _keep_house(self) -> None:
        """What is due a few times a second, and never urgent."""
        if self._stopped:
            return
        self.environment.call_later(HOUSEKEEPING_S, self._keep_house)
        self.environment.holds.turn_window()
        with self._keeping_house:
            self._guarded(self._housekeeping)

    def _housekeeping(self) -> None:
        if not self.rewriter.active:
            self.housekeeper.run()
            self.upkeep.tick()
            self._applier.retry()
            self.pump()

    # ---------------------------------------------------------------- proposing

    @property
    def is_stopped(self) -> bool:
        """Takes part no more."""
        return self._stopped

    @property
    def is_ready(self) -> bool:
        """Leads, has applied its own no-op, and takes proposals."""
        engine = self.engine
        return (
            engine.accepts_proposals
            and not self.leading.hands_over
            and not self._stopped
            and engine.own_term_committed
            and self._applier.applied_index >= engine.term_start
        )

    def stage(
        self,
        size: int,
        fill: Fill | None,
        commands: bytes | bytearray = b"",
        context: object = None,
        *,
        privileged: bool = False,
        own: bool = False,
    ) -> int:
        """Put a unit into this turn's entry; see `Leading.stage`."""
        return self.leading.stage(size, fill, commands, context, privileged=privileged, own=own)

    def not_leader(self) -> NotLeaderError:
        """Why nothing can be proposed here."""
        return not_leader(self.engine)

    def change_membership(self, membership: Membership) -> None:
        """Propose another membership; at most one voter may differ."""
        self.leading.change_membership(membership)
        self.pump()

    def transfer(self, to: ReplicaId | None) -> bool:
        """Hand leadership to a voter, by default the one with the most of the log; False if there is none."""
        started = self.leading.transfer(to)
        self.pump()
        return started

    # ---------------------------------------------------------------- effects

    def pump(self) -> None:
        """Carry out the engine's effects until there are none, then what the service is to be told."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._carry_out()
        except Exception as error:
            self.fail(error)
        finally:
            self._pumping = False
        self._completions.run()

    def _carry_out(self) -> None:
        while not self._stopped and not self.rewriter.active:
            output = self.engine.take()
            if not output.effects and not output.after_sync:
                self._standing.look()
                return
            self.execute(output)

    def execute(self, output: Output) -> None:
        """Carry out effects at once, or behind a rewriting of the log that is under way."""
        if self.rewriter.hold(output):
            return
        with self._completions.executing:
            for done, effect in enumerate(output.effects, 1):
                self._execute(effect)
                if self.rewriter.hold_rest(output, done):
                    return
            if output.after_sync:
                self._saver.hold(output.after_sync)

    def _execute(self, effect: Effect) -> None:
        match effect:
            case AppendEntries(metas, data):
                self._append(metas, data)
            case SendEntries() | SendCatchUp() | SendMessage():
                self._outbox.send(effect)
            case Commit(index):
                self.leading.committed(index)
                self._applier.advance(index)
            case SaveHardState(state):
                self._saver.save(state)
            case Truncate(first_index):
                applied = self._applier.applied_index
                invariant(first_index > applied, "what is applied is never truncated", first=first_index)
                self.rewriter.truncate(first_index)
            case RoleChanged(role, _, _):
                self._role_changed(role)
            case MembershipChanged(membership):
                self.leading.roster.changed(membership)
            case ReadsReady(number, index):
                self._reads.confirmed(number, index)
                self._completions.add(self._applier.serve_reads)
            case ReadsFailed():
                self._completions.add(partial(self._reads.fail, self.not_leader()))
            case ResetLog(base):
                self._reset(base)
            case SendSnapshot(to, term):
                self._outbox.send_snapshot(to, term)

    def _append(self, metas: Sequence[EntryMeta], data: bytes | bytearray | memoryview) -> None:
        first = metas[0]
        chain = link(data, 0, self.store.last_chain)
        if chain != first.chain_crc:
            raise ContradictionError(
                f"entry {first.index} of term {first.term} does not continue this log: its chain crc is"
                f" {first.chain_crc:#010x}, ours would be {chain:#010x}; the replicas' logs differ below it"
            )
        self.store.append(metas, data)
        self._recent.append(list(metas), data)
        self.flusher.written()

    def _role_changed(self, role: Role) -> None:
        if role is Role.CANDIDATE:
            self.elections += 1
        self.leading.role_changed(role)

    def _reset(self, base: SnapshotMeta) -> None:
        self._snapshotter.abandon()
        self._applier.halt()
        self.rewriter.replace(base, partial(self._replaced, base, self._feed.take_offered(base)))

    def _replaced(self, base: SnapshotMeta, restore: Restore) -> None:
        self.leading.replaced(base.position)
        self._completions.add(partial(self._applier.begin_at, base, restore))

    # ---------------------------------------------------------------- receiving, see `dledger.net.transport.Receiver`

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """A consensus message arrived."""
        if self._stopped:
            return
        try:
            self._inbox.on_message(sender, message, payload)
        except Exception as error:
            self.fail(error)
        self.pump()

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Bytes of one of the replica's own channels arrived."""
        if channel == SNAPSHOT_CHANNEL:
            self._guarded(partial(self._inbox.receiver.on_data, sender, data))
        elif channel in UPKEEP_CHANNELS:
            self._guarded(partial(self.upkeep.on_data, sender, channel, data))
        elif channel == DIGEST_CHANNEL and self.is_ready:
            self._guarded(partial(self._snapshotting.propose_digest, data))

    def on_connected(self, peer: ReplicaId) -> None:
        """A peer can be sent to."""
        self._outbox.connect(peer)
        self.engine.peer_connected(peer, self.environment.now())
        self.pump()

    def on_disconnected(self, peer: ReplicaId) -> None:
        """A peer was lost."""
        self._outbox.disconnect(peer)
        self.engine.peer_disconnected(peer)

    # ---------------------------------------------------------------- applying

    def suspect(self, index: int) -> None:
        """A read of the log from entry `index` on did not verify: have it found out what is corrupt there."""
        self.repairer.suspect(index)

    @property
    def on_trimmed(self) -> list[Callable[[int], None]]:
        """Called with the position at which the log begins after a trim."""
        return self._snapshotter.on_trimmed

    @property
    def applied_index(self) -> int:
        return self._applier.applied_index

    @property
    def applied_position(self) -> int:
        """End of the last applied entry."""
        return self._applier.applied_position

    @property
    def durable_position(self) -> int:
        """Everything before it is on this replica's disk."""
        return self.store.durable_position

    # ---------------------------------------------------------------- asking

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        """`callback(None)` once everything committed before this call is applied here; leader only."""
        self._reads.add(callback)

    def broadcast_commit(self) -> None:
        """Leader: tell followers the commit index at once, because somebody waits for it there."""
        self.engine.broadcast_commit(self.environment.now())
        self.pump()

    def propose_trim(self, position: int) -> bool:
        """Leader: have every replica drop what lies before a snapshot; False if none stands at `position`."""
        return self._snapshotting.propose_trim(position)
