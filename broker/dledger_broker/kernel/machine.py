"""State machine of the broker: applies entries of the log to its tables and views, and calls back the code that needs
to know.

    machine = BrokerMachine(data_dir, env=env, features=FEATURES)
    node = Node(config, machine)
    machine.attach(node)
    await node.start()
    machine.start()
    ...
    await machine.close()
    await node.stop()

It knows no feature. Features' tables are in `state`, and their callbacks receive all other notices. Features read
`state`, take queues from `queue`, and stage records (`kernel.writer`) and commands (`overlay`, `proposals`). A snapshot
that is installed replaces the object `state`. Keep neither it nor its queues across turns of the event loop, except in
staged contexts. Code that asks a table for every message keeps that table through `on_state`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, cast

import msgspec

from dledger.environment import Environment, called_back
from dledger.errors import LogFullError, NotLeaderError
from dledger.log import Log
from dledger.statemachine import CommittedEntry, Leadership, Restore
from dledger.store.disk import Disk, OsDisk
from dledger.store.identity import read_identity
from dledger.types import SnapshotMeta
from dledger_base.invariants import invariant
from dledger_broker.kernel.activating import Activation
from dledger_broker.kernel.applying_records import dispatch, redispatch, scan_entry
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done, QueueRun, StagedContext
from dledger_broker.kernel.events import Events
from dledger_broker.kernel.feature import FeatureView, Replicated
from dledger_broker.kernel.jobs import LeaderJobs
from dledger_broker.kernel.lookup import Lookup
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState, registry_of
from dledger_broker.kernel.tables import Changes
from dledger_broker.kernel.told_kinds import ReportedKinds
from dledger_broker.kernel.topic_proposals import TopicProposals
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.kernel.trims_under_way import TrimsUnderWay
from dledger_broker.kernel.view_recovery import recover_queues
from dledger_broker.views.checkpoint import DIRECTORY as CHECKPOINTS
from dledger_broker.views.checkpoint import TopicExtent
from dledger_broker.views.checkpointer import Checkpointer
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.databases import DatabaseFiles, Databases
from dledger_broker.views.keyfile import IndexLayout
from dledger_broker.views.keyindex import DIRECTORY as KEY_INDEX
from dledger_broker.views.keysearch import KeySearch
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.mending import QueueMender
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.unitfiles import FileLayout
from dledger_broker.views.units import UNIT, UNITS_PER_FILE
from dledger_broker.views.writer import ViewWriter

_view_of: Final = attrgetter("view")

DATABASES: Final = "timeindex"
"""Folder of the features' databases."""
DERIVED: Final = (CHECKPOINTS, KEY_INDEX, DATABASES)
"""Directories without which all views are made anew from the beginning of the log. Consume queues are checked against
the checkpoint in one of them.
"""


class MachineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and delays of the state machine.

    `units_per_file`, `index_slots` and `index_entries` are RocketMQ's, unless a test wants small files.
    `key_index_share` is the part of a core that indexing keys may take while messages arrive. `withheld_kinds` are
    command kinds that this node applies and does not advertise, so that the group writes none.
    """

    node_id: str = ""
    withheld_kinds: tuple[int, ...] = ()
    view_flush_ms: int = 200
    checkpoint_bytes: int = 1 << 30
    units_per_file: int = UNITS_PER_FILE
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    key_index_share: float = 0.04


class BrokerMachine:
    """The state machine. All methods run on the event loop.

    `events` are the events of its node (`kernel.events`). `jobs` are the leader jobs, `trims_under_way` is the overlay
    of trims.
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
        events: Events | None = None,
    ) -> None:
        """Make an empty machine. `features` are the features of this version, in the order of their tables.

        `events` are those of the node, if others than this machine need them already. `disk` and `databases` replace
        the real disk and databases.
        """
        self.features = features
        self.commands = registry_of(features)
        self.config = config or MachineConfig()
        self.env = env
        self.state = BrokerState(features)
        self._state_listeners: list[Callable[[BrokerState], None]] = []
        self.applied_position = 0
        self.trims_under_way = TrimsUnderWay()
        self.leadership = Leadership(0, None, is_leader=False, ready=False)
        self.events = events or Events()
        self._disk = disk or OsDisk(data_dir)
        self.databases = databases or DatabaseFiles(os.path.join(data_dir, DATABASES))
        self._feature_views: list[FeatureView] = []
        self._log: Log | None = None
        self._overlay_term = 0
        self._restored = False
        self._recovering = False
        self._has_changes = False
        """True if tables may have changed since they were last told that a batch was applied."""
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
        """Views with files below an offset that the checkpoint on the disk still lists."""
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
        self.mender = QueueMender(env, self.queues, reader, self, self._views)
        self.overlay = Overlay(self.commands, self, self.events)
        self.jobs = LeaderJobs(env, self.overlay)
        withheld = self.config.withheld_kinds
        self.advertised_kinds = tuple(kind for kind in self.commands.kinds if kind not in withheld)
        """The command kinds that this node advertises."""
        self._kinds = ReportedKinds(self.config.node_id, self.advertised_kinds, self.overlay, self, env)
        self.activation = Activation(self.overlay, self, env)
        self.events.add(self.activation)
        self.proposals = TopicProposals(self.overlay, self, env)

    # ---------------------------------------------------------------- life

    def attach(self, log: Log) -> None:
        """Set the node that applies to this machine, before it is started."""
        self._log = log

    @property
    def log(self) -> Log:
        """The attached node."""
        invariant(self._log is not None, "the machine is attached to a node")
        return cast(Log, self._log)

    def start(self) -> None:
        """Begin to index keys, to follow trims and to write checkpoints. Called when the node has started."""
        self.log.on_trimmed(self._trimmed)
        self.checkpointer.scrub()
        self.keys.start()
        self.mender.start()
        for view in self._feature_views:
            view.start(self.checkpointer.incarnation)

    def abandon(self) -> None:
        """Start no more work on the views. Nothing else is left to do if the log has failed."""
        self.queues.halt()
        self.keys.abandon()
        self.mender.abandon()
        for view in self._feature_views:
            view.abandon()
        self._writer.abandon()

    async def close(self) -> None:
        """Write and sync the views. The node is still running."""
        await self.keys.close()
        await self.mender.close()
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
        """Apply committed entries in order to the state and the views, then call back."""
        if self._recovering:
            self._finish_recovery()
        touched: list[QueueState] = []
        topic_version, changes = self.state.topic_table.version, Changes(self.state.tables)
        for entry in entries:
            if len(entry.records):
                dispatch(self._runs_of(entry), touched)
            if len(entry.commands):
                self.state.apply(entry, changes, self.commands)
                self._has_changes = True
            self.applied_position = entry.end
        if self._has_changes:
            self._has_changes = False
            self.state.batch_applied(self.env.now)
        for deleted in changes.deleted_topics:
            self.queues.delete_topic(deleted.config.topic_name, deleted.created_position)
        if touched:
            self.state.topic_table.queues_changed(touched)
            self.queues.appended(map(_view_of, touched))
        if self.state.topic_table.version != topic_version:
            for tell in self.events.topics_changed:
                tell()
        if changes.groups_changed:
            for tell in self.events.groups_changed:
                tell()
        if changes.members_changed:
            for tell in self.events.members_changed:
                tell()
        for entry in entries:
            for context in cast(Sequence[StagedContext], entry.contexts):
                context.applied()
        if touched:
            for arrived in self.events.messages_arrived:
                arrived(touched)
        self.checkpointer.maybe_start(self.applied_position)

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """Append to the views the records of entries that the restored state already covers."""
        for entry in entries:
            if len(entry.records):
                records = scan_entry(self.state.topic_table, entry)
                self.queues.appended(redispatch(records, self.state.topic_table, self.queues.start_over))

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """Take back the staged offsets of lost proposals, because a leader may keep leading, and no queue may have a
        gap.

        1. An entry waits for space on the disk, with other entries behind it.
        2. The disk has no space, so all of them are dropped.
        3. There is space again, and the same leader hands out the next offsets.
        """
        for context in cast(Sequence[StagedContext], contexts):
            for queue, end_offset, units in context.runs:
                queue.staged_offset = min(queue.staged_offset, end_offset - len(units) // UNIT.size)
        if full is not None:
            self._notify_refused(cast(Sequence[StagedContext], contexts))
        for context in cast(Sequence[StagedContext], contexts):
            context.dropped(full)

    def _notify_refused(self, contexts: Sequence[StagedContext]) -> None:
        """Call back with the position from which on nothing that was staged is written."""
        begins = [begin for begin, end in (context.extent for context in contexts) if begin != end]
        if begins:
            for refuse in self.events.refused:
                refuse(min(begins))

    def on_leadership(self, leadership: Leadership) -> None:
        """Note a change of role, term or leader."""
        before, self.leadership = self.leadership, leadership
        readiness_changes = (before.term, before.ready) != (leadership.term, leadership.ready)
        if readiness_changes:
            self.jobs.stop()
        if not leadership.is_leader or (leadership.ready and leadership.term != self._overlay_term):
            # Not when a handover fails: changes in flight are still this leader's then, and keep their offsets.
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
                for discard in self.events.unready:
                    discard(error)
        for note in self.events.new_leadership:
            note(leadership)
        if readiness_changes and leadership.ready:
            self.jobs.start(leadership.term)

    def snapshot(self) -> Iterator[bytes]:
        """Capture the state for a snapshot. Also move the views' checkpoint, so that a start rebuilds little
        below it.
        """
        self._finish_recovery()
        self.checkpointer.offer()
        return encode_state(self.state, self.env.now())

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        """Decode a snapshot, and return the function that puts the new state in place."""
        state = BrokerState(self.features) if meta is None else decode_state(chunks, self.env.now(), self.features)
        return partial(self._restore, state, 0 if meta is None else meta.position)

    def _restore(self, state: BrokerState, position: int) -> int:
        """Put a state in place. The first call is a start, a later call installs a snapshot of the leader."""
        for topic in self.state.topics.values():
            topic.drop()
        self._replace_state(state)
        self._has_changes = True
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
            for tell in (*self.events.topics_changed, *self.events.groups_changed):
                tell()
            return position
        identity = read_identity(self._disk)
        incarnation = "" if identity is None else identity.incarnation
        self.checkpointer.incarnation = self.keys.incarnation = incarnation
        rebuild_from = recover_queues(self._disk, self.queues.layout, self.state.topic_table, position, incarnation)
        if rebuild_from == position:
            self._finish_recovery()
        return rebuild_from

    def _replace_state(self, state: BrokerState) -> None:
        self.state = state
        for listener in self._state_listeners:
            listener(state)

    def on_state(self, listener: Callable[[BrokerState], None]) -> None:
        """Call `listener` with the present state, and with each later state before a request is answered from it."""
        self._state_listeners.append(listener)
        listener(self.state)

    def add_view(self, view: FeatureView) -> None:
        """Add the view of a feature, before the node is started."""
        self._feature_views.append(view)

    def digest(self) -> int:
        """Return the digest of the replicated state."""
        return self.state.digest()

    # ---------------------------------------------------------------- for features

    def topic(self, name: str) -> TopicState | None:
        """Return a topic that records or commands may be staged for. None if it does not exist or its deletion is in
        flight.
        """
        return None if self.proposals.topic_deleting(name) else self.state.topics.get(name)

    def queue(self, topic: str, queue_id: int) -> QueueState | None:
        """Return a queue of a topic, as `topic` finds it. None if its number is out of range and nothing was ever
        stored in it.
        """
        found = self.topic(topic)
        if found is None:
            return None
        if 0 <= queue_id < found.queue_count:
            return found.queue(queue_id)
        return found.queues.get(queue_id)

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        """Propose a command. Changes of named things go through proposals that know what is in flight
        (`ChangesInFlight`).

        `privileged` commands make room, or are small and rare. They may use the disk space that is kept back.
        """
        self.overlay.stage_command(command, done, privileged=privileged)

    def understood_by_all(self, command: type[Command]) -> bool:
        """Return whether every member of the group understands a command, so that it may be proposed."""
        members = [member.node_id for member in self.log.membership.members]
        return self.state.members.understood_by_all(self.commands.kind_of(command), members)

    def is_active(self, feature: str) -> bool:
        """Return whether the group uses a feature that is declared as activated, as far as this node has applied."""
        return self.activation.is_active(feature)

    def learn_kinds(self, node_id: str, kinds: tuple[int, ...]) -> None:
        """Note the command kinds that a member understands. The leader records them, now or in a later term."""
        self._kinds.learn(node_id, kinds)
        if self.leadership.ready:
            self._kinds.record(node_id)

    @property
    def kept_from(self) -> int:
        """Position below which the log is trimmed, on this node or another, or about to be. For the leader."""
        return max(self.log.first_position, self.trims_under_way.position, self.state.trims.before)

    def hand_over(self) -> None:
        """Prepare for another node to lead."""
        for prepare in self.events.prepare_handover:
            prepare()

    # ---------------------------------------------------------------- inside

    def _runs_of(self, entry: CommittedEntry) -> Iterable[QueueRun]:
        """Return the runs of an entry's records: as this replica listed them when it staged them, or else by
        parsing.
        """
        contexts = cast(Sequence[StagedContext], entry.contexts)
        runs: list[QueueRun] = []
        start = begin = end = entry.records_position
        for context in contexts:
            first, after = context.extent
            if first < after:
                begin, end = min(begin, first), after
                runs += context.runs
        if begin == start and end == begin + len(entry.records):
            return runs
        return scan_entry(self.state.topic_table, entry)

    def _finish_recovery(self) -> None:
        """Finish the recovery of the views. All entries below the restored state were passed to `rebuild`.

        The log does not have the units that a view lacks now, so the view starts over.
        """
        if not self._recovering:
            return
        self._recovering = False
        for queue in self.state.topic_table.queues():
            invariant(queue.view.end <= queue.next_offset, "views hold what the state covers", queue=queue)
            if queue.view.end < queue.next_offset:
                self.queues.start_over(queue.view, queue.next_offset)

    def _views(self) -> Iterator[QueueView]:
        """Return the views of all queues, as they are now."""
        return iter([queue.view for queue in self.state.topic_table.queues()])

    def _capture_extents(self) -> tuple[int, list[TopicExtent]]:
        return self.applied_position, _extents_of(self.state.topic_table)

    def _trimmed(self, position: int) -> None:
        """Note that the log now starts at `position`. The state has had the first kept offsets before."""
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
        """Remove files that no checkpoint lists any more. If the checkpoint on the disk still lists them, the next trim
        tries again.
        """
        if saved:
            self.queues.remove_below(shortened)
        else:
            self._files_kept += shortened


def _extents_of(topics: TopicTable) -> list[TopicExtent]:
    """Return the extents that the views of all queues hold now."""
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
