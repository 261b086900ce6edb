"""Truth about messages: the log, read entry by entry independently of the code under test.

All nodes must agree with it.

- No operation is stored twice. An operation that was answered as not stored is never stored.
- Idempotent sends may be repeated, and are not stored twice either. This holds while the first message is kept,
  remembered, and not rotten.
- Once every node understands that, each idempotent send is remembered by the entry that stores it.
- A batch is stored whole, or not at all.
- A queue's records have the offsets 0, 1, 2, … without gaps or duplicates.
- The committed offset of a consumer of a lasting topic never goes back. No offset is committed for a topic that does
  not exist.
- Equal logs make equal states.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Final

from dledger.format import iter_commands
from dledger.statemachine import CommittedEntry
from dledger.types import SnapshotMeta
from dledger_broker.features.accounts.table import DeleteAccount, PutAccount
from dledger_broker.features.assignments.table import Mode, ModeKey, PutRequestMode
from dledger_broker.features.confirmations.commands import ConfirmLease
from dledger_broker.features.delay.commands import EndTimers, TimerRows
from dledger_broker.features.delay.records import DUE_TOPICS
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.leases.commands import LeasedPop, RenewLeases
from dledger_broker.features.offsets.table import CommitOffsets, DeleteOffsets
from dledger_broker.features.pins.table import DeletePins, Pin, PutPin
from dledger_broker.features.pop.commands import Ack, Pop, ResetPop, Revive
from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.features.resets.table import ResetOffsets, SeeReset
from dledger_broker.features.sending.dedup.remembered import (
    REMEMBER_SENDS,
    LimitSends,
    RememberSends,
    store_timestamp_of,
)
from dledger_broker.features.sending.dedup.rows import Run
from dledger_broker.kernel.commands import Command, CommandRegistry
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.views.scan import tag_code_of
from dledger_remoting.record import RECORD_HEAD_BYTES, scan_records
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, is_system_group
from dledger_sim.brokers.due import WAITING_TOPICS, DueTruth
from dledger_sim.brokers.expected import Claim, Expected, Incarnation, OffsetKey, Stored
from dledger_sim.brokers.group_times import BUSY_S
from dledger_sim.brokers.half_truth import HalfTruth
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.pop_truth import PopTruth
from dledger_sim.brokers.reset_truth import GROUPS as RESET_GROUPS
from dledger_sim.brokers.reset_truth import ResetTruth
from dledger_sim.brokers.sent_back import SentBackTruth, copy_at
from dledger_sim.log.environment import WALL_EPOCH_MS
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

NEWEST: Final = 60
HIDDEN_TOPICS: Final = frozenset({HALF_TOPIC, CHECK_MAX_TIME_TOPIC, *DUE_TOPICS})
LEADER_KNOWS_S: Final = 10.0
"""Time limit in seconds within which a leader has applied what another has applied, apart from the leader's pauses."""


class Truth:
    """Judge that follows the log, whose `commands` it knows. `happened` counts rare events."""

    def __init__(self, happened: Counter[str], commands: CommandRegistry) -> None:
        self._commands = commands
        self.happened = happened
        self.topics: dict[str, Incarnation] = {}
        self.stored: dict[int, Stored] = {}
        self.by_position: dict[int, Stored] = {}
        self.committed: dict[OffsetKey, int] = {}
        self.expected = Expected()
        self.halves = HalfTruth(happened)
        self.pops = PopTruth(
            happened,
            self.topics,
            lambda name: self.expected.groups[name].last is not None,
            lambda key: self.committed.get(key, 0),
            self._put_offset,
        )
        self.resets = ResetTruth(happened, self.topics, self.expected, self._put_offset)
        self.newest: defaultdict[str, deque[Stored]] = defaultdict(lambda: deque(maxlen=NEWEST))
        """Last messages of each topic, even if the topic is gone."""
        self.lasting: set[str] = set()
        """Topics that are never deleted."""
        self.sent_back = SentBackTruth(happened)
        self._remembered: set[int] = set()
        """Positions of sends that the log remembers."""
        self.due = DueTruth(happened, self.lasting, self.sent_back, self._remembered)
        self.seeking: set[str] = set()
        """Consumer groups whose offsets may go back, because their consumers seek."""
        self.restless: set[str] = {*RESET_GROUPS}
        """Consumer groups that are reset, or whose members come and go.

        Their polls end early, so that they learn of it.
        """
        self.refused: set[int] = set()
        """Operations that were answered as certainly not stored."""
        self.sent_again: set[int] = set()
        """Operations that may be stored more than once: they were tried again, or sent through a write alias."""
        self.idempotent: dict[int, int] = {}
        """First operation of each repeatable send, by each of its operations."""
        self.batches: dict[int, list[int]] = {}
        """All operations of a batch, by each of them."""
        self._group: SimGroup | None = None
        self.claims: dict[str, Claim] = {}
        """Pins of the log on which a reader relies."""
        self.trimmed_to = 0
        """Position below which the log need not be kept."""
        self._understands: set[str] = set()
        """Nodes that are known to understand commands that remember sends."""
        self._is_limited = False
        """True once the log says for how long sends are remembered."""
        self._may_remember_since: float | None = None
        self._remembers_from: int | None = None
        """Position of the log from which on every idempotent send must be remembered."""
        self._positions: list[int] = []
        """Positions of all records."""
        self.window_ms = 0
        """Time for which the log remembers a send, in milliseconds."""
        self._now_ms = 0
        self.stored_again: Counter[int] = Counter()
        """Number of times that each operation was stored again: it was sent again, or idempotent and forgotten."""
        self._digests: dict[int, int] = {}
        self._index = -1
        self.commit_watchers: list[Callable[[OffsetKey, int], None]] = []
        """Callbacks for every commit that takes effect, called once per commit."""

    @property
    def group(self) -> SimGroup:
        """Group whose log this is."""
        assert self._group is not None
        return self._group

    def begin(self, group: SimGroup) -> None:
        """Set the group. Clients begin to talk to it, after it has run for a moment."""
        self._group = group
        self.due.early_s += BUSY_S * (group.settings.call_cost_s > 0)

    # ---------------------------------------------------------------- the log

    def see(self, entry: CommittedEntry) -> None:
        """Handle an entry when it is applied for the first time on any node."""
        if entry.index <= self._index:
            return
        self._index = entry.index
        self._see_who_remembers()
        self.pops.begin_entry()
        commands = [
            self._commands.decode(kind, payload)
            for kind, payload in iter_commands(entry.commands)
            if kind in self._commands.types
        ]
        for command in commands:
            if isinstance(command, RememberSends):
                self._see_remembered(entry, Run.of(command.rows))
        if len(entry.records):
            self._see_records(entry)
        for command in commands:
            self._see_command(command, entry)
        self.sent_back.check_entry()

    def _see_remembered(self, entry: CommittedEntry, rows: Run) -> None:
        """Note the sends that an entry remembers. A row stands for as many consecutive records as it has members."""
        positions = [entry.records_position + record.position for record in scan_records(bytes(entry.records))]
        firsts = struct.iter_unpack(">Q", rows.positions)
        for (members,), (position,) in zip(struct.iter_unpack(">H", rows.members), firsts, strict=True):
            first = positions.index(position)
            self._remembered.update(positions[first : first + members.bit_count()])
            self.happened["send remembered"] += members.bit_count()
            self.happened["sends remembered together"] += members.bit_count() > 1

    def _see_records(self, entry: CommittedEntry) -> None:
        records, base = bytes(entry.records), entry.records_position
        self.due.see_records(entry)
        self._now_ms = max(self._now_ms, store_timestamp_of(entry))
        places: dict[int, tuple[int, int]] = {}
        for record in scan_records(records):
            place, size, queue_id, offset = record.position, record.size, record.queue_id, record.queue_offset
            operation = operation_of(records[place + RECORD_HEAD_BYTES :])
            name = record.topic.decode()
            copy = copy_at(records, place, name, operation)
            is_sent = copy is None and record.topic not in WAITING_TOPICS
            require(operation not in self.refused, "a refused message is never stored", operation=operation)
            if copy is not None:
                self.pops.see_copy(name, operation)
                self.sent_back.see_record(copy, self._latest)
            if is_sent:
                places[operation] = queue_id, offset
                self.due.see_delivered(operation, self._moment, clocks_jumped=self._clocks_jumped)
            if name == HALF_TOPIC:
                self.halves.see_half(operation, base + place)
            elif name == CHECK_MAX_TIME_TOPIC:
                self.halves.see_undecided(operation)
            elif is_sent:
                self.halves.see_message(operation)
                if operation in self.stored:
                    self._see_repetition(operation)
            require(
                self._remembers_from is None
                or base + place < self._remembers_from
                or not is_sent
                or self.idempotent.get(operation) != operation
                or base + place in self._remembered,
                "an idempotent send is remembered",
                operation=operation,
                position=base + place,
            )
            self._positions.append(base + place)
            topic = self.topics.get(name)
            if topic is None:
                self.happened["message for a deleted topic"] += 1
                continue
            queue = topic.queues.setdefault(queue_id, [])
            require(
                offset == len(queue),
                "queue offsets are given once and without gaps",
                queue=f"{name}/{queue_id}",
                given=offset,
                expected=len(queue),
            )
            position = base + place
            tag_code = tag_code_of(record.properties)
            times = (self._now_ms, entry.index, self._moment)
            stored = Stored(operation, name, topic.created, queue_id, offset, position, size, tag_code, *times)
            queue.append(stored)
            if name in HIDDEN_TOPICS:
                continue
            self.by_position[position] = stored
            if is_sent:
                self.newest[name].append(stored)
                self.stored[operation] = stored
                self.expected.accounts.check_stored(operation, self._moment)
        self._see_batches(places)

    def _see_who_remembers(self) -> None:
        """Determine the position from which on sends must be remembered.

        No send is remembered before every node understands that. Leaders that do not know yet may still propose without
        it.
        """
        group = self._group
        if group is None or self._remembers_from is not None or not self._is_limited:
            return
        if not self._understands.issuperset(group.settings.names):
            return
        now = group.scheduler.now
        if self._may_remember_since is None:
            self._may_remember_since = now
        elif now > self._may_remember_since + LEADER_KNOWS_S + group.longest_pause_s:
            self._remembers_from = self.due.remembers_from = group.witness.end_position

    def _see_batches(self, places: dict[int, tuple[int, int]]) -> None:
        """Check the batches of an entry, given the queue and offset of each operation."""
        for operation, (queue_id, offset) in places.items():
            batch = self.batches.get(operation, [operation])
            first = offset - batch.index(operation)
            require(
                all(places.get(other) == (queue_id, first + number) for number, other in enumerate(batch)),
                "a batch is stored whole, at consecutive offsets",
                batch=batch,
                places=places,
            )

    def _see_repetition(self, operation: int) -> None:
        """Check an operation that is stored for the second time.

        The first message must be trimmed, forgotten or rotten.
        """
        first = self.idempotent.get(operation)
        forgotten = (
            operation in self.due.stored_again
            or operation in self.sent_again
            or (
                first is not None
                and (
                    (first != operation and first in self.stored_again)
                    or self._may_forget()
                    or self.stored[first].position < self.trimmed_to
                    or self.stored[first].position not in self._remembered
                    or self._now_ms - self.stored[first].at_ms >= self.window_ms
                )
            )
        )
        require(forgotten, "no operation is stored twice", operation=operation, stored=self.stored[operation])
        self.stored_again[operation] += 1
        self.happened["send forgotten and stored again"] += 1

    def _see_command(self, command: Command, entry: CommittedEntry) -> None:
        match command:
            case PutTopic() | DeleteTopic() | PutGroup() | DeleteGroup() | PutRequestMode():
                self._see_change(command, entry)
            case PutQuota() | PutAccount() | DeleteAccount():
                self.expected.see_setting(command, entry.index, self._moment)
            case CommitOffsets(offsets=rows):
                for group, topic, queue_id, offset in rows:
                    if self.pops.governs((group, topic, queue_id)):
                        self.happened["commit in a popped queue"] += 1
                    elif not self.resets.voids((group, topic, queue_id), offset):
                        self._see_commit((group, topic, queue_id), offset)
                self.expected.see_committers(command, entry.index, self._moment, self.resets.pending)
            case DeleteOffsets(pairs=pairs):
                self._forget_offsets(key for key in self.committed if key[:2] in pairs)
            case Features(node_id=node_id, kinds=kinds):
                self.expected.features[node_id] = kinds
                if REMEMBER_SENDS in kinds:
                    self._understands.add(node_id)
            case LimitSends():
                self._is_limited = True
            case PutPin(name=name, position=position, lease_ms=lease_ms, renewed_ms=renewed_ms):
                self.expected.see(("pin", name, lease_ms))
                self.expected.put_pin(Pin(name, position, lease_ms, renewed_ms))
            case DeletePins(names=names):
                for name in names:
                    self.expected.pins.pop(name, None)
            case TimerRows() | EndTimers():
                self.due.see_command(command, may_forget=self._may_forget())
            case Pop() | Ack() | Revive() | ResetPop() | LeasedPop() | RenewLeases() | ConfirmLease():
                self.pops.see(command, WALL_EPOCH_MS + self._latest * 1000)
            case ResetOffsets() | SeeReset():
                self.resets.see(command, entry.index, self._moment)
            case TrimQueues(before_position=position, first_offsets=rows):
                self.due.see_trim(position)
                self._see_pins(position)
                self.trimmed_to = max(self.trimmed_to, position)
                self.expected.trims.put(entry.index, self._moment, self.trimmed_to)
                for name, created, queue_id, first in rows:
                    incarnation = self.topics.get(name)
                    if incarnation is not None and incarnation.created == created:
                        self._see_trim(incarnation, queue_id, first, self.trimmed_to)
                        self.pops.see_trim(name, queue_id, first)
                        self.resets.see_trim(name, queue_id, first, entry.index, self._moment)

    def _see_change(
        self, command: PutTopic | DeleteTopic | PutGroup | DeleteGroup | PutRequestMode, entry: CommittedEntry
    ) -> None:
        """Handle a change of a topic, of a consumer group, or of the way in which a group consumes a topic."""
        expected, index, moment = self.expected, entry.index, self._moment
        match command:
            case PutTopic(config=config):
                name = config.topic_name
                expected.see(("topic", name, config.topic_sys_flag))
                incarnation = self.topics.get(name)
                if incarnation is None:
                    incarnation = self.topics[name] = Incarnation(name, entry.end)
                    expected.incarnations[name, entry.end] = incarnation
                    expected.topics[name].put(index, moment, incarnation)
                incarnation.config = config
                self.pops.see_queues(name, config.read_queue_nums)
                expected.configs[name].put(index, moment, config)
                expected.topic_versions.put(index, moment, expected.topic_versions.last + 1)
            case DeleteTopic(topic=name):
                if self.topics.pop(name, None) is not None:
                    self.happened["topic deleted"] += 1
                    expected.topics[name].put(index, moment, None)
                    expected.configs[name].put(index, moment, None)
                    expected.end_modes(index, moment, topic=name)
                    expected.topic_versions.put(index, moment, expected.topic_versions.last + 1)
                self._forget_offsets(key for key in self.committed if key[1] == name)
                self.pops.forget(lambda key: key[1] == name)
            case PutGroup(config=group_config):
                expected.see(("group", group_config.group_name, group_config.retry_max_times))
                expected.groups[group_config.group_name].put(index, moment, group_config)
            case PutRequestMode(topic=topic, group=group, pops=pops, pop_share_queues=share):
                mode = Mode(pops, share)
                expected.see(("mode", ModeKey(topic, group), mode))
                expected.modes[ModeKey(topic, group)].put(index, moment, mode)
            case DeleteGroup(group=name, clean_offsets=clean):
                self.happened["group deleted"] += expected.groups[name].last is not None
                expected.groups[name].put(index, moment, None)
                expected.end_modes(index, moment, group=name)
                self.pops.forget(lambda key: key[0] == name)
                if clean:
                    self._forget_offsets(key for key in self.committed if key[0] == name)

    def _forget_offsets(self, keys: Iterable[OffsetKey]) -> None:
        for key in list(keys):
            del self.committed[key]
            self.expected.offsets[key].put(self._index, self._moment, None)

    def _see_pins(self, position: int) -> None:
        """Check that a trim that is about to happen takes no pinned log.

        On a full disk expired messages go despite pins.
        """
        if self._group is None or self._group.clocks_jumped or self.disks_filled:
            return
        for name, claim in self.claims.items():
            lasts = self._group.scheduler.now < claim.until
            require(
                not lasts or position <= claim.position, "a pinned log is kept", pin=name, claim=claim, trim=position
            )

    @property
    def disks_filled(self) -> bool:
        """True if a disk was full at any time, or may have been."""
        return self._group is not None and (self._group.disks_filled or self._group.disks_crowded)

    @property
    def _clocks_jumped(self) -> bool:
        return self._group is not None and self._group.clocks_jumped

    @property
    def _latest(self) -> float:
        """Latest present time by any leader's clock, in simulated seconds."""
        return float("inf") if self._clocks_jumped else self._moment + self.due.early_s

    def _may_forget(self) -> bool:
        """Return whether rot or a jump of a wall clock may have let the group forget idempotent sends."""
        return self._clocks_jumped or (self._group is not None and self._group.rotten)

    @staticmethod
    def _see_trim(topic: Incarnation, queue_id: int, first: int, position: int) -> None:
        queue = topic.queues.get(queue_id, [])
        require(
            first <= bisect_left(queue, position, key=lambda stored: stored.position),
            "a queue keeps every message that the log keeps",
            queue=f"{topic.name}/{queue_id}",
            first=first,
            position=position,
        )
        topic.first_offsets[queue_id] = max(topic.first_offsets.get(queue_id, 0), first)

    def _see_commit(self, key: OffsetKey, offset: int) -> None:
        before = self.committed.get(key, -1)
        require(key[1] in self.topics, "an offset is committed for a topic that exists", key=key, offset=offset)
        require(
            offset >= before or key[1] not in self.lasting or key[0] in self.seeking,
            "a committed offset never goes back",
            key=key,
            before=before,
            now=offset,
        )
        require(
            self.expected.groups[key[0]].last is not None or is_system_group(key[0]),
            "an offset is committed for a group that exists",
            key=key,
            offset=offset,
        )
        self.expected.see(("offset", *key, offset))
        self._put_offset(key, offset)
        for watcher in self.commit_watchers:
            watcher(key, offset)

    def _put_offset(self, key: OffsetKey, offset: int) -> None:
        self.committed[key] = offset
        self.expected.offsets[key].put(self._index, self._moment, offset)

    @property
    def _moment(self) -> float:
        return 0.0 if self._group is None else self._group.scheduler.now

    def positions_between(self, start: int, end: int) -> list[int]:
        """Return the positions of all records in a range of the log, in order."""
        return self._positions[bisect_left(self._positions, start) : bisect_left(self._positions, end)]

    # ---------------------------------------------------------------- replicas

    def compare(self, node: str, index: int, state: BrokerState) -> None:
        """Compare a replica's state after the entry at `index`."""
        digest = state.digest()
        known = self._digests.setdefault(index, digest)
        require(known == digest, "equal logs make equal states", node=node, index=index)
        if index == self._index:
            self.expected.compare(node, index, state)
            self.resets.compare(node, index, state)

    def restored(self, node: str, meta: SnapshotMeta | None, state: BrokerState, rebuild_from: int, now: float) -> None:
        """Check a replica that starts from a snapshot, or from nothing: it must have the state of that entry.

        `now` is a time of the replica's own clock.
        """
        if meta is not None:
            digest = state.digest()
            known = self._digests.get(meta.last_index, digest)
            require(known == digest, "a snapshot restores the state of its entry", node=node, index=meta.last_index)
            self.expected.compare_restored(node, meta.last_index, state, now, self._moment)
        if meta is None:
            self.happened["state from the log"] += 1
        elif rebuild_from == 0 < meta.position:
            self.happened["views rebuilt"] += 1
        elif rebuild_from < meta.position:
            self.happened["views caught up"] += 1
        else:
            self.happened["views trusted"] += 1

    # ---------------------------------------------------------------- answers

    def acknowledged(self, operation: int, queue_id: int, offset: int, position: int) -> None:
        """Check a message that was answered as stored."""
        stored = self.by_position.get(position)
        require(
            stored is not None and (stored.operation, stored.queue_id, stored.offset) == (operation, queue_id, offset),
            "an acknowledged message is stored where the answer says",
            operation=operation,
            answered=(queue_id, offset, position),
            stored=stored,
        )

    def commit_acknowledged(self, key: OffsetKey, offset: int) -> None:
        """Check a commit that was answered as applied."""
        found = self.committed.get(key, -1)
        require(found >= offset, "a commit is acknowledged once it is applied", key=key, answered=offset, found=found)

    def check_asked(self, operation: int, position: int) -> None:
        """Check a question to a producer about the half at a position."""
        self.halves.see_check(operation, position, self._latest)

    def refuse(self, operation: int) -> None:
        """Note that an answer said that a client's message is not stored."""
        require(operation not in self.stored, "a refused message is never stored", operation=operation)
        self.refused.add(operation)
