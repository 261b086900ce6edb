"""Leader job that redelivers popped messages that nobody has acknowledged in time.

Copies in the group's retry or dead-letter topic, and the end of the deliveries, are written in one unit. Messages
popped in order stay in their queue and are popped again from there, until they have been delivered too often.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from dledger.environment import Environment
from dledger.errors import BusyError, LogError, LogFullError, TooLargeError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.pop.answers import copy_of
from dledger_broker.features.pop.changes import PopChanges, bits_in
from dledger_broker.features.pop.commands import PopQueueKey, Revive, ReviveRow
from dledger_broker.features.pop.deliveries import Delivery, PopQueue, offsets_of
from dledger_broker.features.pop.held import HeldPops
from dledger_broker.features.pop.reading import PopReads, ReadPlan, ReadRecords
from dledger_broker.features.pop.shared_names import SharedNames
from dledger_broker.features.pop.table import POPPED
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import NewRecord, Stored, UnitOutcome
from dledger_remoting.errors import RecordError
from dledger_remoting.pop import Retry, pop_retry_topic
from dledger_remoting.record import MessageRecord, decode_record
from dledger_remoting.topics import (
    PERM_READ_WRITE,
    SubscriptionGroupConfig,
    TopicConfig,
    dead_letter_topic,
    is_retry_topic,
)

NEW_LEADER_S: Final = 10.0
"""Minimum time for which a new leader keeps a delivery hidden that was applied before this node became the ready
leader.
"""


class HiddenByLease(Protocol):
    """Knowledge of how long leases hide deliveries."""

    def hides(self, delivery: Delivery) -> bool:
        """Return whether a delivery is under a lease, or about to be."""

    def left_ms(self, delivery: Delivery, now: float, now_ms: int, ready_at: float) -> int:
        """Return for how many milliseconds a delivery under a lease is not due at least.

        `now` and `now_ms` are the present time by the clock of the event loop and by group time. This node leads since
        `ready_at`.
        """


class Dues:
    """Judge of deliveries: due once group time and this leader's own clock have both passed the invisible time.

    The own clock counts from the moment when this leader applied the delivery. Group time alone is not enough:

    1. A message is popped for a minute.
    2. The clocks of a majority jump ahead by an hour, and are believed.
    3. By group time alone, another consumer would get the message while the first works on it.

    A new leader does not know since when an earlier delivery is hidden. It relies on group time and waits
    `NEW_LEADER_S`. `leases` judges deliveries under a lease.
    """

    def __init__(self, env: Environment, clock: GroupClock, group: LeadershipView) -> None:
        self.leases: HiddenByLease | None = None
        self._env = env
        self._clock = clock
        self._group = group
        self._ready_in: int | None = None
        self._ready_at = 0.0
        self.leader_changed()

    def leader_changed(self) -> None:
        """Note when this node became ready as the leader."""
        ready_in = self._group.term if self._group.ready else None
        if ready_in is not None and ready_in != self._ready_in:
            self._ready_at = self._env.now()
        self._ready_in = ready_in

    def is_due(self, delivery: Delivery) -> bool:
        """Return whether the open messages of a delivery are to be delivered again."""
        now_ms = self._clock.now_ms()
        return now_ms is not None and self.left_ms(delivery, now_ms) <= 0

    def left_ms(self, delivery: Delivery, now_ms: int) -> int:
        """Return for how many milliseconds a delivery is not due at least, at a given group time."""
        now = self._env.now()
        if self.leases is not None and self.leases.hides(delivery):
            return self.leases.left_ms(delivery, now, now_ms, self._ready_at)
        if delivery.applied_at < self._ready_at:
            hidden_s = self._ready_at + NEW_LEADER_S - now
        else:
            hidden_s = delivery.applied_at + delivery.invisible_ms / 1000 - now
        return max(delivery.due_ms - now_ms, math.ceil(hidden_s * 1000))


LOOK_S: Final = 0.1
AGAIN_MS: Final = 500
"""Interval after which the revival of a delivery is tried again."""
REPAIR_MS: Final = 30_000
"""Interval after which an unreadable delivery is tried again. The log may have healed its records meanwhile."""
SPARE_ENTRIES: Final = 1_024
"""Number by which stale entries of the heap must exceed the open messages before the heap is rebuilt."""
MAX_DELIVERIES: Final = 50
"""Maximum number of deliveries per pass, so that their rows fit a unit."""
MAX_UNIT_BYTES: Final = 256 << 10
"""Maximum size of the copies of one unit, in a large segment. A larger message travels alone."""
MAX_REASONS: Final = 10_000
"""Maximum number of remembered reasons of failed deliveries, 300 characters each."""
MAX_SEGMENT_SHARE: Final = 4
"""Minimum ratio of a segment's size to the size of a unit."""

_Name: TypeAlias = tuple[PopQueueKey, int]
"""Name of a delivery: its queue and its pop time."""

_NOTHING: Final = ReadRecords(0, ())

_logger: Final = logging.getLogger(__name__)


class _Message(NamedTuple):
    """Open message of a delivery that is due, with its record, or None if the record cannot be read now."""

    queue: PopQueue
    delivery: Delivery
    bit: int
    record: MessageRecord | None


class Revivals:
    """Leader job that revives deliveries; implements `dledger_broker.kernel.jobs.Job`.

    It wakes the pops that are `held` in topics in which messages may be popped again in order. `revived`, `buried` and
    `unreadable` count messages of this node.
    """

    name: Final = "revivals"

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        config: BrokerConfig,
        clock: GroupClock,
        dues: Dues,
        changes: PopChanges,
        reads: PopReads,
        groups: GroupProposals,
        shared_names: SharedNames,
        held: HeldPops,
    ) -> None:
        self._held = held
        self.revived = self.buried = self.unreadable = 0
        self._machine = machine
        self._env = env
        self._takes_v2 = config.pop_retry_topic_v2
        self._clock = clock
        self.dues = dues
        self._changes = changes
        self._reads = reads
        self._groups = groups
        self._shared_names = shared_names
        self._is_busy = False
        self._run: JobHandle | None = None
        self._heap: list[tuple[int, PopQueueKey, int]] = []
        """Deliveries by the time at which they become due, for the current run. Each run begins with all deliveries."""
        self._untaken: set[_Name] = set()
        """Deliveries that no consumer received, noted in the current run."""
        self._reasons: OrderedDict[_Name, str] = OrderedDict()
        """Reasons why consumers could not handle deliveries, noted in the current run, the oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        machine.on_state(self._watch)

    def _watch(self, state: BrokerState) -> None:
        state.table(POPPED).on_delivery = self._delivered

    def _delivered(self, queue: PopQueue, delivery: Delivery) -> None:
        if self._run is not None and self._run.is_stopped:
            self._run, self._heap = None, []
        if self._run is None:
            return
        heapq.heappush(self._heap, (delivery.due_ms, queue.key, delivery.pop_time_ms))
        table = self._changes.table
        if len(self._heap) > 2 * table.open_count + SPARE_ENTRIES:
            # Otherwise a delivery that is acknowledged within a moment would stay listed until the end of its invisible
            # time (12 h).
            self._heap = [entry for entry in self._heap if table.delivery(entry[1], entry[2]) is not None]
            heapq.heapify(self._heap)

    def note_untaken(self, key: PopQueueKey, pop_time_ms: int) -> None:
        """Note that no consumer received a delivery, because its client had gone. Its redelivery does not count as
        another.
        """
        if self._run is not None and self._changes.table.delivery(key, pop_time_ms) is not None:
            self._untaken.add((key, pop_time_ms))

    def note_failed(self, key: PopQueueKey, pop_time_ms: int, reason: str) -> None:
        """Note why a consumer could not handle a message, for the copy of the message.

        Reasons are for people: only this leader knows them, and the oldest are forgotten above `MAX_REASONS`.
        """
        if self._run is not None and self._changes.table.delivery(key, pop_time_ms) is not None:
            self._reasons[key, pop_time_ms] = reason
            if len(self._reasons) > MAX_REASONS:
                self._reasons.popitem(last=False)

    def look_again(self, clients: Container[str]) -> None:
        """Look at all deliveries under the leases of clients, because these leases have ended early."""
        now_ms = self._clock.now_ms()
        if self._run is None or now_ms is None:
            return
        leased = (
            (queue.key, each.pop_time_ms) for queue in self._changes.table for each in queue if each.client in clients
        )
        self._postpone(dict.fromkeys(leased, now_ms))

    def close(self) -> None:
        """Cancel the reads under way."""
        for task in self._tasks:
            task.cancel()

    def run(self, handle: JobHandle) -> None:
        """Begin to search for due deliveries, starting from all deliveries. A lease may have ended early."""
        self._is_busy = False
        self._run = handle
        self._untaken.clear()
        self._reasons.clear()
        self._heap = [
            (delivery.pop_time_ms if delivery.client else delivery.due_ms, queue.key, delivery.pop_time_ms)
            for queue in self._changes.table
            for delivery in queue
        ]
        heapq.heapify(self._heap)
        self._tick(handle)

    # ---------------------------------------------------------------- what is due

    def _tick(self, handle: JobHandle) -> None:
        handle.call_later(LOOK_S, partial(self._tick, handle))
        self._read_due(handle)

    def _read_due(self, handle: JobHandle) -> None:
        now_ms = self._clock.now_ms()
        if now_ms is None or self._is_busy:
            return
        due = self._due(now_ms)
        if due:
            self._is_busy = True
            self._read(due, handle.guarded(partial(self._revive, handle, now_ms)))

    def _due(self, now_ms: int) -> list[tuple[PopQueue, Delivery]]:
        """Return the deliveries to revive now. All examined deliveries stay listed until they are gone."""
        due: list[tuple[PopQueue, Delivery]] = []
        looked_at: dict[_Name, int] = {}
        in_order: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_ms and len(due) < MAX_DELIVERIES:
            _, key, pop_time_ms = heapq.heappop(self._heap)
            queue, delivery = self._changes.table.queue(key), self._changes.table.delivery(key, pop_time_ms)
            if queue is None or delivery is None:
                self._untaken.discard((key, pop_time_ms))
                self._reasons.pop((key, pop_time_ms), None)
                continue
            if (key, pop_time_ms) in looked_at:
                continue
            wait_ms = self.dues.left_ms(delivery, now_ms)
            if wait_ms <= 0 and delivery.is_ordered and not self._becomes_dead_letter(queue, delivery):
                in_order[key.topic] = None
                wait_ms = AGAIN_MS
            elif wait_ms <= 0 and not self._bits_of(queue, delivery):
                wait_ms = AGAIN_MS
            elif wait_ms <= 0:
                due.append((queue, delivery))
            looked_at[key, pop_time_ms] = now_ms + wait_ms
        for (key, pop_time_ms), when_ms in looked_at.items():
            heapq.heappush(self._heap, (when_ms, key, pop_time_ms))
        if in_order:
            self._held.arrived(in_order)
        return due

    def _becomes_dead_letter(self, queue: PopQueue, delivery: Delivery) -> bool:
        """Return whether the first message of an ordered delivery was delivered too often.

        The messages behind it are delivered again by ordered pops.
        """
        is_first = queue.lowest_open == delivery.offsets[0]
        return is_first and delivery.attempt > self._group(queue.key.group).retry_max_times

    def _bits_of(self, queue: PopQueue, delivery: Delivery) -> int:
        """Return the messages that may be revived. Of an ordered delivery, that is the first, which was delivered too
        often.
        """
        free = self._changes.free_bits(queue, delivery)
        return free & 1 if delivery.is_ordered else free

    def _group(self, name: str) -> SubscriptionGroupConfig:
        return self._machine.state.table(GROUPS).by_name[name]

    # ---------------------------------------------------------------- reading

    def _read(self, due: Sequence[tuple[PopQueue, Delivery]], done: Callable[[Sequence[_Message]], None]) -> None:
        """Read open messages of deliveries, as many as fit a unit. `done` is called at once if all of them are in
        memory.
        """
        found: list[_Message] = []
        for queue, delivery, bit in self._within_unit(due, found):
            plan = self._plan_read(queue, delivery, bit)
            read = _NOTHING if plan is None else self._read_now(plan)
            if read is None:
                task = asyncio.get_running_loop().create_task(self._read_later(due, done))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            found.append(_message(queue, delivery, bit, read))
        done(found)

    def _read_now(self, plan: ReadPlan) -> ReadRecords | None:
        """Read a message, or return None if that needs the disk. A rotten record counts as missing, as in a read from
        disk.
        """
        try:
            return self._reads.read_now(plan)
        except LogError:
            return _NOTHING

    async def _read_later(
        self, due: Sequence[tuple[PopQueue, Delivery]], done: Callable[[Sequence[_Message]], None]
    ) -> None:
        found: list[_Message] = []
        for queue, delivery, bit in self._within_unit(due, found):
            plan, read = self._plan_read(queue, delivery, bit), None
            if plan is not None:
                try:
                    read = self._reads.read_now(plan, await self._reads.read_later(plan))
                except (LogError, OSError):
                    read = None
            found.append(_message(queue, delivery, bit, read))
        done(found)

    def _within_unit(
        self, due: Sequence[tuple[PopQueue, Delivery]], found: Sequence[_Message]
    ) -> Iterator[tuple[PopQueue, Delivery, int]]:
        """Yield the messages to read, until the records found fill a unit."""
        size = 0
        for queue, delivery in due:
            for bit in bits_in(self._bits_of(queue, delivery)):
                yield queue, delivery, bit
                record = found[-1].record
                size += 0 if record is None else len(record.body) + len(record.properties)
                if size > self._unit_bytes:
                    return

    @property
    def _unit_bytes(self) -> int:
        return min(MAX_UNIT_BYTES, self._machine.log.segment_bytes // MAX_SEGMENT_SHARE)

    def _plan_read(self, queue: PopQueue, delivery: Delivery, bit: int) -> ReadPlan | None:
        topic = self._machine.topic(queue.key.topic)
        if topic is None:
            return None
        return ReadPlan(topic.queue(queue.key.queue_id), offsets_of(delivery.offsets, bit)[0], 1)

    # ---------------------------------------------------------------- reviving

    def _revive(self, handle: JobHandle, now_ms: int, messages: Sequence[_Message]) -> None:
        """Write copies of the messages that are still open and have no change in flight."""
        self._is_busy = False
        unit = _Unit(self._unit_bytes)
        later: dict[_Name, int] = {}
        lacking: dict[str, dict[_Name, int]] = {}
        for queue, delivery, bit, record in messages:
            name = (queue.key, delivery.pop_time_ms)
            if self._changes.table.delivery(*name) is not delivery:
                continue
            if not bit & self._changes.free_bits(queue, delivery) or not self.dues.is_due(delivery):
                continue
            if self._is_ending(queue):
                later[name] = now_ms + AGAIN_MS
            elif record is None:
                self._found_unreadable(queue)
                later[name] = now_ms + REPAIR_MS
            elif self._machine.topic(topic := self._topic_for(queue, delivery, record)) is None:
                later[name] = now_ms + AGAIN_MS
                lacking.setdefault(topic, {})[name] = now_ms
            elif unit.has_room_for(record):
                counts, reason = name not in self._untaken, self._reasons.get(name)
                copy = copy_of(record, topic, delivery.pop_time_ms, counts=counts, reason=reason)
                unit.add(queue, delivery, bit, copy)
                unit.buried += topic == dead_letter_topic(queue.key.group)
        self._postpone(later)
        for topic, waiting in lacking.items():
            self._make(handle, topic, waiting)
        if unit.copies:
            self._write(handle, unit, now_ms)

    def _postpone(self, whens_ms: Mapping[_Name, int]) -> None:
        """Try deliveries again at these group times, no earlier. Otherwise:

        1. Fifty deliveries are due first, and their retry topic cannot be created.
        2. These deliveries stay due.
        3. Each pass takes the same fifty, and never finds another delivery.
        """
        if whens_ms:
            self._heap = [entry for entry in self._heap if entry[1:] not in whens_ms]
            self._heap += ((when_ms, *name) for name, when_ms in whens_ms.items())
            heapq.heapify(self._heap)

    def _is_ending(self, queue: PopQueue) -> bool:
        """Return whether the deletion of the topic or the group is in flight, which ends the deliveries."""
        return self._machine.topic(queue.key.topic) is None or not self._groups.has_group(queue.key.group)

    def _found_unreadable(self, queue: PopQueue) -> None:
        self.unreadable += 1
        _logger.warning(
            "event=popped_message_unreadable topic=%s queue=%d consequence='tried again later'", *queue.key[1:]
        )

    def _topic_for(self, queue: PopQueue, delivery: Delivery, record: MessageRecord) -> str:
        """Return the topic that receives the copy of a message."""
        group = queue.key.group
        has_used_retries = delivery.is_ordered or record.reconsume_times >= self._group(group).retry_max_times
        if has_used_retries and (queue.key, delivery.pop_time_ms) not in self._untaken:
            return dead_letter_topic(group)
        avoids_v1 = self._shared_names.are_unsafe
        if is_retry_topic(queue.key.topic):
            # Do not use the topic named in the record: a client that sends to the retry topic by itself can choose that
            # name.
            popped = self._shared_names.popped_topic(group, queue.key.topic) if avoids_v1 else None
            return queue.key.topic if popped is None else pop_retry_topic(group, popped, Retry.V2)
        retry = Retry.V2 if self._takes_v2 or avoids_v1 else Retry.V1
        return pop_retry_topic(group, queue.key.topic, retry)

    def _make(self, handle: JobHandle, topic: str, waiting: Mapping[_Name, int]) -> None:
        """Create a topic that deliveries wait for, and try them again once the topic exists."""

        def made(error: LogError | None) -> None:
            if error is None:
                self._postpone(waiting)

        handle.require_running()
        config = TopicConfig(topic, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
        self._machine.proposals.ensure_topic(config, handle.guarded(made))

    def _write(self, handle: JobHandle, unit: _Unit, now_ms: int) -> None:
        closed = unit.closed
        read_next = handle.guarded(partial(self._read_due, handle))

        def settled(outcome: UnitOutcome) -> None:
            self._changes.end_closing(closed)
            if isinstance(outcome, Stored):
                self.buried += unit.buried
                self.revived += len(unit.copies) - unit.buried
                self._held.arrived([key.topic for key, _, _ in closed])
            read_next()

        self._changes.begin_closing(closed)
        try:
            handle.write(unit.copies, [unit.command], done=settled)
        except (BusyError, LogFullError):
            self._changes.end_closing(closed)
        except TooLargeError:
            self._changes.end_closing(closed)
            for queue, _ in unit.deliveries:
                self._found_unreadable(queue)
            self._postpone({(queue.key, each.pop_time_ms): now_ms + REPAIR_MS for queue, each in unit.deliveries})


class _Unit:
    """Copies and rows of one unit."""

    def __init__(self, limit: int) -> None:
        self.copies: list[NewRecord] = []
        self.closed: list[tuple[PopQueueKey, int, int]] = []
        self.deliveries: dict[tuple[PopQueue, Delivery], None] = {}
        self.size = self.buried = 0
        self._limit = limit
        self._rows: dict[tuple[PopQueueKey, int], ReviveRow] = {}

    def has_room_for(self, record: MessageRecord) -> bool:
        """Return whether another message is within the limit. The first message always is."""
        return not self.copies or self.size + len(record.body) + len(record.properties) <= self._limit

    def add(self, queue: PopQueue, delivery: Delivery, bit: int, copy: NewRecord) -> None:
        """Add a message."""
        self.copies.append(copy)
        self.deliveries[queue, delivery] = None
        self.size += copy.size
        name = (queue.key, delivery.pop_time_ms)
        self.closed.append((*name, bit))
        row = self._rows.get(name) or ReviveRow(
            queue.key.group, queue.key.topic, queue.created_position, queue.key.queue_id, delivery.pop_time_ms, 0
        )
        self._rows[name] = row._replace(bits=row.bits | bit)

    @property
    def command(self) -> Revive:
        """Command that ends the deliveries of these messages."""
        return Revive(tuple(self._rows.values()))


def _message(queue: PopQueue, delivery: Delivery, bit: int, read: ReadRecords | None) -> _Message:
    """Return a message, with its record if the read found the record at the message's offset."""
    record = None
    if read is not None and read.records:
        try:
            record = decode_record(read.records[0], verify_crc=True)
        except RecordError:
            record = None
    if record is not None and [record.queue_offset] != offsets_of(delivery.offsets, bit):
        record = None
    return _Message(queue, delivery, bit, record)
