"""State machine of the broker: what entries of the log do to its tables and views, and who is told of it.

    machine = BrokerMachine(data_dir, env=env, features=FEATURES)
    node = Node(config, machine)
    machine.attach(node)
    await node.start()
    machine.start()
    ...
    await machine.close()
    await node.stop()

It knows no feature: their tables are in `state`, and what else concerns them is told to their callbacks.  Features read
`state`, take queues from `queue`, stage records (`kernel.writer`) and commands (`overlay`, `proposals`).  `state` is
another object after a snapshot was installed: keep neither it nor its queues across turns of the event loop, except in
staged contexts; a table is kept by whoever asks it for every message (`on_state`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, cast

import msgspec

from dledger.environment import Environment, called_back
from dledger.errors import LogFullError, NotLeaderError
from dledger.invariants import invariant
from dledger.log import Log
from dledger.statemachine import CommittedEntry, Leadership, Restore
from dledger.store.disk import Disk, OsDisk
from dledger.store.identity import read_identity
from dledger.types import SnapshotMeta
from dledger_broker.kernel.activating import Activation
from dledger_broker.kernel.applying_records import dispatch, redispatch, scan_entry
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done, QueueRun, StagedContext
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.feature_views import FeatureView
from dledger_broker.kernel.jobs import LeaderJobs
from dledger_broker.kernel.lookup import Lookup
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState, registry_of
from dledger_broker.kernel.tables import Changes
from dledger_broker.kernel.told_kinds import ToldKinds
from dledger_broker.kernel.topic_proposals import TopicProposals
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.kernel.trims_under_way import TrimsUnderWay
from dledger_broker.kernel.view_recovery import recover_queues
from dledger_broker.views.checkpoint import TopicExtent
from dledger_broker.views.checkpointer import Checkpointer
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.databases import DatabaseFiles, Databases
from dledger_broker.views.keyfile import IndexLayout
from dledger_broker.views.keysearch import KeySearch
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.unitfiles import FileLayout
from dledger_broker.views.units import UNIT, UNITS_PER_FILE
from dledger_broker.views.writer import ViewWriter

DATABASES: Final = "timeindex"
"""Folder of what features have in databases."""


class MachineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and delays of the state machine.  `units_per_file`, `index_slots` and `index_entries` are RocketMQ's unless
    a test wants small files; `key_index_share` is the part of a core that indexing keys may take while messages arrive.
    """

    node_id: str = ""
    view_flush_ms: int = 200
    checkpoint_bytes: int = 1 << 30
    units_per_file: int = UNITS_PER_FILE
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    key_index_share: float = 0.04


class BrokerMachine:
    """See the module's description.  Everything is for the event loop.

    `on_arrival(queues)` is called after each batch of entries with the queues that got messages, some more than once;
    the messages can be read by then. The callbacks in `on_topics_changed` and `on_groups_changed` come before the
    contexts of the change, and when a snapshot replaced everything; those in `on_members_changed` when a member
    understands other command kinds, or a feature has become active; those in `on_leadership_changed` at every change of
    role, term or leader. Before these, those in `on_unready` if this replica takes no proposals now, with the error for
    whoever waits to propose; those in `before_handover` are called while it still does. Those in `on_refused` are told
    from which position on nothing that was staged is written, for want of space, before its contexts are.
    `jobs` are what a leader does by itself, `trims_under_way` its overlay of trims.
    """

    def __init__(
        self,
        data_dir: str,
        *,
        env: Environment,
        features: Sequence[Replicated],
        config: MachineConfig | None = None,
        disk: Disk | None = None,
        databases: Databases | None = None,
    ) -> None:
        """`features` are those of this version, in the order of their tables; `disk` and `databases` stand in for the
        real ones.
        """
        self.features = features
        self.commands = registry_of(features)
        self.config = config or MachineConfig()
        self.env = env
        self.state = BrokerState(features)
        self._told_of_state: list[Callable[[BrokerState], None]] = []
        self.applied_position = 0
        self.trims_under_way = TrimsUnderWay()
        self.leadership = Leadership(0, None, is_leader=False, ready=False)
        self.on_arrival: Callable[[list[QueueState]], None] = _nobody_waits
        self.on_topics_changed: list[Callable[[], None]] = []
        self.on_groups_changed: list[Callable[[], None]] = []
        self.on_members_changed: list[Callable[[], None]] = []
        self.on_refused: list[Callable[[int], None]] = []
        self.on_unready: list[Callable[[NotLeaderError], None]] = []
        self.before_handover: list[Callable[[], None]] = []
        self.on_leadership_changed: list[Callable[[Leadership], None]] = []
        self._disk = disk or OsDisk(data_dir)
        self.databases = databases or DatabaseFiles(os.path.join(data_dir, DATABASES))
        self._feature_views: list[FeatureView] = []
        self._log: Log | None = None
        self._overlay_term = 0
        self._restored = False
        self._recovering = False
        self._writer = ViewWriter(env)
        layout = FileLayout(self.config.units_per_file)
        self.queues = ConsumeQueues(self._disk, env, self._writer, layout, self.config.view_flush_ms)
        self.checkpointer = Checkpointer(
            self._disk,
            env,
            self._writer,
            self.queues,
            capture=self._capture_extents,
            replica=self,
            every_bytes=self.config.checkpoint_bytes,
        )
        self._files_kept: list[tuple[QueueView, int]] = []
        """Queues' files below an offset that the checkpoint on the disk still lists."""
        self.log_reader = reader = LogReader(self)
        self.keys = KeySearch(
            self._disk,
            env,
            IndexLayout(self.config.index_slots, self.config.index_entries),
            reader,
            self,
            self.config.key_index_share,
        )
        self.lookup = Lookup(self, self.queues, reader)
        self.overlay = Overlay(self.commands, self)
        self.jobs = LeaderJobs(env, self.overlay)
        self._kinds = ToldKinds(self.config.node_id, self.commands.kinds, self.overlay, self, env)
        self.activation = Activation(self.overlay, self, env)
        self.on_members_changed.append(self.activation.check)
        self.proposals = TopicProposals(self.overlay, self, env)

    # ---------------------------------------------------------------- life

    def attach(self, log: Log) -> None:
        """Name the node that applies to this machine, before it is started."""
        self._log = log

    @property
    def log(self) -> Log:
        """The attached node."""
        invariant(self._log is not None, "the machine is attached to a node")
        return cast(Log, self._log)

    def start(self) -> None:
        """Begin to index keys, to follow trims and to look after the checkpoint; the node is started."""
        self.log.on_trimmed(self._trimmed)
        self.checkpointer.scrub_later()
        self.keys.start()
        for view in self._feature_views:
            view.start(self.checkpointer.incarnation)

    def abandon(self) -> None:
        """Start no more work on the views; all that is left to do if the log has failed."""
        self.queues.halt()
        self.keys.abandon()
        for view in self._feature_views:
            view.abandon()
        self._writer.abandon()

    async def close(self) -> None:
        """Write and sync the views; the node is still running."""
        await self.keys.close()
        for view in self._feature_views:
            await view.close()
        if self._restored and not self._recovering:
            checkpointed = asyncio.Event()
            self.checkpointer.close(checkpointed.set)
            await checkpointed.wait()
        self.queues.halt()
        await called_back(self.queues.close)

    # ---------------------------------------------------------------- dledger.statemachine.StateMachine

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """See `StateMachine.apply`."""
        self._finish_recovery()
        touched: list[QueueState] = []
        topic_version, changes = self.state.topic_table.version, Changes(self.state.tables)
        for entry in entries:
            if len(entry.records):
                dispatch(self._runs_of(entry), touched)
            if len(entry.commands):
                self.state.apply(entry, changes, self.commands)
            self.applied_position = entry.end
        for table in self.state.tables:
            table.batch_applied(self.env.now)
        for deleted in changes.deleted_topics:
            self.queues.delete_topic(deleted.config.topic_name, deleted.created_position)
        if touched:
            self.state.topic_table.queues_changed(touched)
            self.queues.appended([queue.view for queue in touched])
        if self.state.topic_table.version != topic_version:
            _call(self.on_topics_changed)
        if changes.groups_changed:
            _call(self.on_groups_changed)
        if changes.members_changed:
            _call(self.on_members_changed)
        for entry in entries:
            for context in cast(Sequence[StagedContext], entry.contexts):
                context.applied()
        if touched:
            self.on_arrival(touched)
        self.checkpointer.maybe_start(self.applied_position)

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """See `StateMachine.rebuild`."""
        for entry in entries:
            if len(entry.records):
                records = scan_entry(self.state.topic_table, entry)
                self.queues.appended(redispatch(records, self.state.topic_table, self.queues.start_over))

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """See `StateMachine.dropped`: a leader may go on, and no queue may have a gap.

        1. An entry waits for space on the disk, and others behind it. 2. There is none: they are dropped. 3. There is
        space again, and the same leader hands out the next offsets.
        """
        for context in cast(Sequence[StagedContext], contexts):
            for queue, end_offset, units in context.runs:
                queue.staged_offset = min(queue.staged_offset, end_offset - len(units) // UNIT.size)
        if full is not None:
            self._tell_refused(cast(Sequence[StagedContext], contexts))
        for context in cast(Sequence[StagedContext], contexts):
            context.dropped(full)

    def _tell_refused(self, contexts: Sequence[StagedContext]) -> None:
        """Say from where on nothing of what was staged is written."""
        begins = [begin for begin, end in (context.extent for context in contexts) if begin != end]
        if begins:
            for told in self.on_refused:
                told(min(begins))

    def on_leadership(self, leadership: Leadership) -> None:
        """See `StateMachine.on_leadership`."""
        before, self.leadership = self.leadership, leadership
        readiness_changes = (before.term, before.ready) != (leadership.term, leadership.ready)
        if readiness_changes:
            self.jobs.stop()
        if not leadership.is_leader or (leadership.ready and leadership.term != self._overlay_term):
            # Not when a handover fails: what is in flight then is still this leader's, and keeps its offsets.
            self._overlay_term = leadership.term if leadership.is_leader else 0
            self.state.topic_table.reset_staged()
        if before.is_leader and not leadership.is_leader:
            self._kinds.forget()
        if readiness_changes:
            if leadership.ready:
                self._finish_recovery()
                self._kinds.record_all()
                self.activation.check()
            else:
                error = NotLeaderError(leadership.leader_id, leadership.term)
                for discard in self.on_unready:
                    discard(error)
        for callback in self.on_leadership_changed:
            callback(leadership)
        if readiness_changes and leadership.ready:
            self.jobs.start(leadership.term)

    def snapshot(self) -> Iterator[bytes]:
        """See `StateMachine.snapshot`; also moves the views' checkpoint, so that a start rebuilds little below it."""
        self._finish_recovery()
        self.checkpointer.offer()
        return encode_state(self.state, self.env.now())

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        """See `StateMachine.decode`."""
        state = BrokerState(self.features) if meta is None else decode_state(chunks, self.env.now(), self.features)
        return partial(self._restore, state, 0 if meta is None else meta.position)

    def _restore(self, state: BrokerState, position: int) -> int:
        """The first call is a start, a later one installs a snapshot of the leader's."""
        for topic in self.state.topics.values():
            topic.drop()
        self._put_in_place(state)
        self.applied_position = position
        for view in self._feature_views:
            view.restored(position)
        self._recovering = True
        first, self._restored = not self._restored, True
        if not first:
            self.keys.wipe()
            self.queues.wipe()
            for queue in self.state.topic_table.queues():
                queue.view.reset(queue.next_offset, queue.next_offset)
            _call(self.on_topics_changed)
            _call(self.on_groups_changed)
            return position
        identity = read_identity(self._disk)
        incarnation = "" if identity is None else identity.incarnation
        self.checkpointer.incarnation = self.keys.incarnation = incarnation
        rebuild_from = recover_queues(self._disk, self.queues.layout, self.state.topic_table, position, incarnation)
        if rebuild_from == position:
            self._finish_recovery()
        return rebuild_from

    def _put_in_place(self, state: BrokerState) -> None:
        self.state = state
        for told in self._told_of_state:
            told(state)

    def on_state(self, told: Callable[[BrokerState], None]) -> None:
        """Have `told` called with the state now, and with each that takes its place, before anything asks it."""
        self._told_of_state.append(told)
        told(self.state)

    def add_view(self, view: FeatureView) -> None:
        """A feature has a view of its own; before the node is started."""
        self._feature_views.append(view)

    def digest(self) -> int:
        """See `StateMachine.digest`."""
        return self.state.digest()

    # ---------------------------------------------------------------- for features

    def topic(self, name: str) -> TopicState | None:
        """A topic that anything may be staged for: None if there is none, or if its deletion is in flight."""
        return None if self.proposals.topic_deleting(name) else self.state.topics.get(name)

    def queue(self, topic: str, queue_id: int) -> QueueState | None:
        """A queue of such a topic, or None if its number is out of range and nothing was ever stored in it."""
        found = self.topic(topic)
        if found is None:
            return None
        if 0 <= queue_id < found.queue_count:
            return found.queue(queue_id)
        return found.queues.get(queue_id)

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        """Propose a command; what has names goes through proposals that know what is in flight (`ChangesInFlight`).

        `privileged` is for what makes room, or is small and rare: it may use the disk space that is kept back.
        """
        self.overlay.stage_command(command, done, privileged=privileged)

    def understood_by_all(self, command: type[Command]) -> bool:
        """True if every member of the group understands a command, so that it may be proposed."""
        members = [member.node_id for member in self.log.membership.members]
        return self.state.members.understood_by_all(self.commands.kind_of(command), members)

    def is_active(self, feature: str) -> bool:
        """True once the group uses a feature that is declared as activated, as far as this node has applied."""
        return self.activation.is_active(feature)

    def learn_kinds(self, node_id: str, kinds: tuple[int, ...]) -> None:
        """A member has told which command kinds it understands: the leader records it, this one or a later one."""
        self._kinds.learn(node_id, kinds)
        if self.leadership.ready:
            self._kinds.record(node_id)

    @property
    def kept_from(self) -> int:
        """Leader: the position below which the log is trimmed, here or elsewhere, or about to be."""
        return max(self.log.first_position, self.trims_under_way.position, self.state.trims.before)

    def hand_over(self) -> None:
        """Another node is about to lead."""
        for prepare in self.before_handover:
            prepare()

    # ---------------------------------------------------------------- inside

    def _runs_of(self, entry: CommittedEntry) -> Iterable[QueueRun]:
        """The entry's records, as this replica listed them when it staged them, or else by parsing them."""
        contexts = cast(Sequence[StagedContext], entry.contexts)
        runs: list[QueueRun] = []
        begin = end = entry.records_position
        for context in contexts:
            first, after = context.extent
            if first < after:
                begin, end = min(begin, first), after
                runs += context.runs
        if begin == entry.records_position and end == begin + len(entry.records):
            return runs
        return scan_entry(self.state.topic_table, entry)

    def _finish_recovery(self) -> None:
        """All entries below the restored state were passed to `rebuild`: what views still lack, the log lacks too."""
        if not self._recovering:
            return
        self._recovering = False
        for queue in self.state.topic_table.queues():
            invariant(queue.view.end <= queue.next_offset, "views hold what the state covers", queue=queue)
            if queue.view.end < queue.next_offset:
                self.queues.start_over(queue.view, queue.next_offset)

    def _capture_extents(self) -> tuple[int, list[TopicExtent]]:
        return self.applied_position, _extents_of(self.state.topic_table)

    def _trimmed(self, position: int) -> None:
        """The log now starts at `position`; the state has the first kept offsets since before."""
        self._finish_recovery()
        shortened, self._files_kept = self._files_kept, []
        for queue in self.state.topic_table.queues():
            view = queue.view
            start = min(queue.first_offset, view.end)
            if start > view.start:
                view.start = start
                shortened.append((view, start))
        self.keys.trimmed(position)
        self.checkpointer.request(partial(self._remove_files_below, shortened))

    def _remove_files_below(self, shortened: list[tuple[QueueView, int]], *, saved: bool) -> None:
        """Remove what no checkpoint lists any more; if the one on the disk does, the next trim asks again."""
        if saved:
            self.queues.remove_below(shortened)
        else:
            self._files_kept += shortened


def _extents_of(topics: TopicTable) -> list[TopicExtent]:
    """What the views of all queues hold now."""
    return [
        TopicExtent(
            name,
            topic.created_position,
            [
                (queue_id, queue.view.start, queue.view.end)
                for queue_id, queue in topic.queues.items()
                if queue.view.end
            ],
        )
        for name, topic in topics.by_name.items()
    ]


def _nobody_waits(_queues: list[QueueState]) -> None:
    """What `on_arrival` is until somebody sets it."""


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
