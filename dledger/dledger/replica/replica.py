"""Replica: runs the engine and the store of one member. `dledger.replica.driver` is its interface for its parts.

It owns the store and the engine, carries out the engine's effects in order, and joins them to the state machine. All
methods are called on one event loop. An exception that escapes an effect ends the replica (`failure`), because work
that is half done must not be built upon.
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
from dledger.net.transport import Transport
from dledger.replica.applying.applier import Applier
from dledger.replica.applying.reads import ReadWaiters
from dledger.replica.driver import Completions
from dledger.replica.feed import MachineFeed
from dledger.replica.peers.inbox import Inbox
from dledger.replica.peers.outbox import HardStateSaver, Outbox
from dledger.replica.snapshots.marks import SnapshotMarks
from dledger.replica.snapshots.sending import SNAPSHOT_CHANNEL
from dledger.replica.snapshots.taking import Remover, SnapshotTaker
from dledger.replica.standing import ConnectedPeers, Standing, not_leader
from dledger.replica.start.opening import Opened
from dledger.replica.status import TimedLoop
from dledger.replica.storing.flush_bound import DURABLE_CHANNEL, FlushBound
from dledger.replica.storing.flusher import SLOW_SYNC_S, Flusher
from dledger.replica.storing.recent import RecentEntries
from dledger.replica.storing.rewriting import Rewriter
from dledger.replica.upkeep.forgetting import Forgetter
from dledger.replica.upkeep.members import OwnGroup
from dledger.replica.upkeep.repair import Repairer
from dledger.replica.upkeep.upkeep import CHANNELS as UPKEEP_CHANNELS
from dledger.replica.upkeep.upkeep import Housekeeping, Upkeep
from dledger.replica.writing.leading import Leading
from dledger.replica.writing.own_commands import DIGEST_CHANNEL, OwnCommands
from dledger.replica.writing.space import Reserver
from dledger.statemachine import Restore, StateMachine
from dledger.types import EntryMeta, Fill, Membership, ReplicaId, Role, SnapshotMeta
from dledger_base.invariants import invariant
from dledger_base.loop_holds import HOUSEKEEPING, TICK

TICKS_PER_HEARTBEAT = 2
HOUSEKEEPING_S = 0.25
STALLED_S = 1.0
"""Maximum seconds for which a leader cannot read the entries it is to apply. After that it hands over."""
RETIRE_S = 2.0
"""Time limit in seconds for a leader that retires to hand over."""


class Replica:
    """One member of a group. Call `start` once a transport can send, and `stop` at the end."""

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
        self.me = ReplicaId(config.node_id, opened.identity.incarnation)
        self.environment = environment
        self.timed_loop = TimedLoop(environment)
        self._tick_holds = environment.holds.part(TICK)
        self._housekeeping_holds = environment.holds.part(HOUSEKEEPING)
        self.transport = transport
        self.store = opened.store
        self.snapshots = opened.snapshots
        self.failure: BaseException | None = None
        self.elections = 0
        self._on_failure = on_failure
        self._retire_error: BaseException | None = None
        self._retire_at = float("inf")
        self._is_pumping = False
        self.engine = opened.make_engine(engine, config, environment)
        self._make_parts(opened, state_machine)

    def _make_parts(self, opened: Opened, machine: StateMachine) -> None:
        """Make the parts, each from earlier ones. The machine is given its state in between."""
        config, environment, transport, engine = self.config, self.environment, self.transport, self.engine
        store, snapshots = self.store, self.snapshots
        connected = ConnectedPeers()

        self._completions = Completions(self.fail)
        self._feed = MachineFeed(machine, store, snapshots, self._completions)
        self.standing = standing = Standing(self._completions, self._feed, engine)
        self._recent = RecentEntries(config.recent_bytes)
        self.flusher = Flusher(environment, store, self._completions, engine, self, sync=config.flush == "sync")
        remover = Remover(environment, store, self.flusher, self)
        self._reserver = reserver = Reserver(environment, store, standing, self)
        self._taker = SnapshotTaker(environment, store, snapshots, remover, engine, self)
        self._marks = SnapshotMarks(
            self.me, environment, snapshots, self._taker, machine, engine,
            interval_s=config.snapshot_interval_ms / 1000,
        )  # fmt: skip
        self.leading = Leading(
            config, environment, store, reserver, self._feed, self._completions, self._marks, connected,
            standing, engine, self,
        )  # fmt: skip
        self._own_commands = OwnCommands(self.me, transport, store, self._marks, self.leading, standing, engine)
        self._outbox = Outbox(
            environment, transport, store, snapshots, self._recent, connected, self.leading, engine, self
        )
        self._saver = HardStateSaver(environment, opened.hard_state_file, self._outbox, engine, self)
        self._reads = ReadWaiters(environment, standing, engine, self)
        self._inbox = Inbox(environment, transport, store, reserver, self._feed, self._outbox, engine, self)
        self.rewriter = Rewriter(store, self._recent, self.flusher, self._inbox, engine, self)
        self.housekeeper = Housekeeping(
            config, opened, environment, self._own_commands, self._taker, reserver, self.leading, connected,
            standing, engine, self,
        )  # fmt: skip

        applied_index = self._feed.restore(opened.recovery.base)
        self._marks.note_restored(self._feed.state_index)
        self._applier = Applier(
            environment, store, self._recent, self.leading.contexts, self._completions, self._feed, self._marks,
            self._reads, standing, engine, self, applied_index=applied_index,
        )  # fmt: skip
        self.flush_bound = FlushBound(
            self.me, environment, transport, store, engine, self, self._applier.advance, sync=config.flush == "sync"
        )
        if config.flush == "async":
            self.flusher.on_synced = self.flush_bound.synced
            self._applier.apply_limit = self.flush_bound.apply_limit
        forgetter = Forgetter(
            config.node_id, environment, store, snapshots, self._taker, self._feed, self._applier, standing, self
        )
        self.repairer = Repairer(
            config.node_id, environment, transport, store, connected, self._applier, standing, forgetter, engine, self,
            rest_s=config.scrub_interval_ms / 1000,
        )  # fmt: skip
        self.upkeep = Upkeep(
            config, opened, environment, transport, connected, self.repairer, remover, self.flusher, self._reads,
            standing, self._taker, engine, self,
        )  # fmt: skip
        self.own_group = OwnGroup(opened.identity_files, engine, self.upkeep.promises)

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to take part."""
        self._applier.advance(self.engine.commit_index)
        self._tick()
        self._schedule_housekeeping()
        self.pump()

    def stop(self) -> None:
        """Stop taking part, and drop everything staged or not applied."""
        if not self.standing.is_stopped:
            self.standing.stop()
            self.flusher.stop()
            self._saver.stop()
            self._applier.halt()
            self.leading.drop()
            stopping = NotLeaderError(None, self.engine.term, "this node is stopping")
            self._completions.add(partial(self._reads.fail, stopping))
            self._taker.abandon()
            self._inbox.receiver.abandon()
            self._outbox.stop()
            self.upkeep.stop()
            # a write failed inside `stage`, for example: nothing else would run the completions after that
            if self._completions.executing:
                self.environment.call_soon(self._completions.run)
            else:
                self._completions.run()

    def close(self, *, clean: bool) -> None:
        """Close the files of a stopped replica.

        A replica that may not vote never stops clean, so that it stays in doubt.
        """
        if (clean := clean and self.engine.may_vote) and not self.rewriter.is_active:
            # During a rewriting the log holds entries that the engine has replaced. A saved commit index could cover
            # these entries.
            self.store.save_commit(min(self.engine.commit_index, self.store.durable))
        self.upkeep.close()
        self.store.close(clean=clean)
        self._saver.close()

    def fail(self, error: BaseException) -> None:
        """End this replica: after `error` it cannot continue safely."""
        if self.failure is None and not self.standing.is_stopped:
            self.failure = error
            self.stop()
            self._on_failure(error)

    def retire(self, error: BaseException) -> None:
        """End this replica, after a handover if it leads: the log on its disk cannot grow, the logs of the others can.

        Nothing is synced meanwhile. A sync could succeed although an earlier sync of the same file failed, and an
        acknowledgement would rest on it.
        """
        if self._retire_error is None and not self.standing.is_stopped:
            self._retire_error = error
            self._retire_at = self.environment.now() + RETIRE_S
            self.flusher.stop()
            self._continue_retiring()

    def _continue_retiring(self) -> None:
        if self._retire_error is None:
            return
        leads = self.engine.is_leader and self.environment.now() < self._retire_at
        if not leads or not (self.leading.is_handing_over or self.transfer(None)):
            self.fail(self._retire_error)

    def _run_guarded(self, work: Callable[[], object]) -> None:
        if self.standing.is_stopped:
            return
        try:
            work()
        except Exception as error:
            self.fail(error)

    def run(self, work: Callable[[], object]) -> None:
        """Run `work`, which gives the engine something to do, then carry out the engine's effects.

        A stopped replica does nothing.
        """
        if not self.standing.is_stopped:
            self._run_guarded(work)
            self.pump()

    def _tick(self) -> None:
        if self.standing.is_stopped:
            return
        self.timed_loop.call_later(self.config.heartbeat_ms / 1000 / TICKS_PER_HEARTBEAT, self._tick)
        with self._tick_holds:
            self._run_guarded(self._on_tick)

    def _on_tick(self) -> None:
        engine = self.engine
        self._continue_retiring()
        if self.rewriter.is_active:
            return  # step the held messages first: a follower that hears nobody would campaign
        disk_wait_s = max(self.flusher.outstanding_s, self._reserver.outstanding_s, self._saver.outstanding_s)
        engine.healthy = (
            disk_wait_s < SLOW_SYNC_S and self._applier.stalled_s < STALLED_S and self._retire_error is None
        )
        engine.tick(self.environment.now())
        self.flusher.tick()
        self.flush_bound.recheck()
        if not engine.healthy and engine.is_leader:
            self._hand_over()
        self.pump()

    def _hand_over(self) -> None:
        """Give leadership to another node, because this node's disk hangs."""
        if self._reserver.outstanding_s >= SLOW_SYNC_S:
            self.leading.give_up_waiting()
        if self.engine.is_leader and not self.leading.is_handing_over:
            self.transfer(None)

    def _schedule_housekeeping(self) -> None:
        """Do work that is due a few times a second and never urgent."""
        if self.standing.is_stopped:
            return
        self.environment.call_later(HOUSEKEEPING_S, self._schedule_housekeeping)
        self.environment.holds.turn_window()
        with self._housekeeping_holds:
            self._run_guarded(self._do_housekeeping)

    def _do_housekeeping(self) -> None:
        if not self.rewriter.is_active:
            self.housekeeper.run()
            self.upkeep.tick()
            self._applier.retry()
            self.pump()

    # ---------------------------------------------------------------- proposing

    @property
    def is_ready(self) -> bool:
        """True if this replica leads, has applied the no-op of its term, and takes proposals."""
        return self.standing.is_ready

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
        """Return the error that says why nothing can be proposed here."""
        return not_leader(self.engine)

    def change_membership(self, membership: Membership) -> None:
        """Propose another membership; at most one voter may differ."""
        self.leading.change_membership(membership)
        self.pump()

    def transfer(self, to: ReplicaId | None) -> bool:
        """Hand leadership to a voter, by default the one with the longest log; False if that cannot begin."""
        started = self.leading.transfer(to)
        self.pump()
        return started

    # ---------------------------------------------------------------- effects

    def pump(self) -> None:
        """Carry out the engine's effects until there are none, then the calls into the service."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            self._execute_effects()
        except Exception as error:
            self.fail(error)
        finally:
            self._is_pumping = False
        self._completions.run()

    def _execute_effects(self) -> None:
        while not self.standing.is_stopped and not self.rewriter.is_active:
            output = self.engine.take()
            if not output.effects and not output.after_sync:
                self.standing.renew()
                return
            self.execute(output)

    def execute(self, output: Output) -> None:
        """Carry out effects at once, or after a rewriting of the log that is under way."""
        rewriter = self.rewriter
        if rewriter.is_active and rewriter.hold(output):
            return
        completions = self._completions
        completions.executing += 1
        try:
            for executed, effect in enumerate(output.effects, 1):
                self._execute(effect)
                if rewriter.is_active and rewriter.hold_rest(output, executed):
                    return
            if output.after_sync:
                self._saver.hold(output.after_sync)
        finally:
            completions.executing -= 1

    def _execute(self, effect: Effect) -> None:
        match effect:
            case AppendEntries(metas, data):
                self._append(metas, data)
            case SendEntries() | SendCatchUp() | SendMessage():
                self._outbox.send(effect)
            case Commit(index):
                self.leading.note_committed(index)
                self._applier.advance(index)
            case SaveHardState(state):
                self._saver.save(state)
            case Truncate(first_index):
                applied = self.standing.applied_index
                invariant(first_index > applied, "what is applied is never truncated", first=first_index)
                self.rewriter.truncate(first_index)
            case RoleChanged(role, _, _):
                self._role_changed(role)
            case MembershipChanged(membership):
                self.leading.roster.note_changed(membership)
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
        self.flusher.note_written()

    def _role_changed(self, role: Role) -> None:
        if role is Role.CANDIDATE:
            self.elections += 1
        self.leading.role_changed(role)
        self.flush_bound.role_changed()

    def _reset(self, base: SnapshotMeta) -> None:
        self._taker.abandon()
        self._applier.halt()
        self.rewriter.replace(base, partial(self._replaced, base, self._feed.take_offered(base)))

    def _replaced(self, base: SnapshotMeta, restore: Restore) -> None:
        self.leading.note_replaced(base.position)
        self._completions.add(partial(self._applier.begin_at, base, restore))

    # ---------------------------------------------------------------- receiving, see `dledger.net.transport.Receiver`

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """Take a consensus message."""
        if self.standing.is_stopped:
            return
        try:
            self._inbox.on_message(sender, message, payload)
        except Exception as error:
            self.fail(error)
        self.pump()

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Take bytes of one of the replica's own channels."""
        if channel == SNAPSHOT_CHANNEL:
            self._run_guarded(partial(self._inbox.receiver.on_data, sender, data))
        elif channel == DURABLE_CHANNEL:
            self._run_guarded(partial(self.flush_bound.on_data, sender, data))
        elif channel in UPKEEP_CHANNELS:
            self._run_guarded(partial(self.upkeep.on_data, sender, channel, data))
        elif channel == DIGEST_CHANNEL:
            self._run_guarded(partial(self._own_commands.on_data, data))

    def on_connected(self, peer: ReplicaId) -> None:
        """Note that a peer can be sent to."""
        self._outbox.connect(peer)
        self.flush_bound.connected()
        self.engine.peer_connected(peer, self.environment.now())
        self.pump()

    def on_disconnected(self, peer: ReplicaId) -> None:
        """Note that a peer was lost."""
        self._outbox.disconnect(peer)
        self.engine.peer_disconnected(peer)

    # ---------------------------------------------------------------- applying

    def suspect(self, index: int) -> None:
        """Have the log checked from entry `index` on, because a read there did not verify."""
        self.repairer.suspect(index)

    @property
    def on_trimmed(self) -> list[Callable[[int], None]]:
        """Callbacks for the position at which the log begins after a trim."""
        return self._taker.on_trimmed

    @property
    def applied_index(self) -> int:
        return self.standing.applied_index

    @property
    def applied_position(self) -> int:
        """End of the last applied entry."""
        return self.standing.applied_position

    @property
    def durable_position(self) -> int:
        """Position up to which everything is on this replica's disk."""
        return self.store.durable_position

    # ---------------------------------------------------------------- asking

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        """Call `callback(None)` once everything committed before this call is applied here. Leader only."""
        self._reads.add(callback)

    def broadcast_commit(self) -> None:
        """On a leader, send the commit index to followers at once, because a client waits for it there."""
        self.engine.broadcast_commit(self.environment.now())
        self.pump()

    def propose_trim(self, position: int) -> bool:
        """On a leader, have every replica trim the log before a snapshot.

        Returns False if there is none at `position`.
        """
        return self._own_commands.propose_trim(position)
