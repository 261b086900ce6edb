"""Job that delivers popped messages again which nobody has acknowledged in time: copies in the group's retry topic, or
in its dead letters, and the end of the deliveries, in one unit.

What is popped in order stays where it is, and is popped again from there, unless that was often enough.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from dledger.environment import Environment
from dledger.errors import BusyError, LogError, LogFullError, TooLargeError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.pop.changes import PopChanges, bits_in
from dledger_broker.features.pop.commands import PopQueueKey, Revive, ReviveRow
from dledger_broker.features.pop.copies import copy_of
from dledger_broker.features.pop.deliveries import Delivery, PopQueue, offsets_of
from dledger_broker.features.pop.dues import Dues
from dledger_broker.features.pop.reading import Found, PopReads, Wanted
from dledger_broker.features.pop.shared_names import SharedNames
from dledger_broker.features.pop.table import POPPED
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import JobHandle
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

LOOK_S: Final = 0.1
AGAIN_MS: Final = 500
"""A delivery that cannot be revived yet is looked at again after so long."""
REPAIR_MS: Final = 30_000
"""The same of one that cannot be read: the log may have healed it."""
MAX_DELIVERIES: Final = 50
"""Deliveries of one look, so that their rows fit a unit."""
MAX_UNIT_BYTES: Final = 256 << 10
"""Copies of one unit, in a large segment; a larger message travels alone."""
MAX_SEGMENT_SHARE: Final = 4
"""No unit has more than this part of a segment."""

_Name: TypeAlias = tuple[PopQueueKey, int]
"""A delivery: its queue, and its pop time."""

_NOTHING: Final = Found(0, ())

_logger: Final = logging.getLogger(__name__)


class _Message(NamedTuple):
    """An open message of a delivery that is due, and its record; None if that cannot be read now."""

    queue: PopQueue
    delivery: Delivery
    bit: int
    record: MessageRecord | None


class Revivals:
    """A leader's job; implements `dledger_broker.kernel.jobs.Job`.

    `on_due` is told the topics in which something may be popped again in order. `revived`, `buried` and `unreadable`
    count messages of this node.
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
    ) -> None:
        self.on_due: Callable[[Iterable[str]], None] = _nobody_waits
        self.revived = self.buried = self.unreadable = 0
        self._machine = machine
        self._env = env
        self._takes_v2 = config.pop_retry_topic_v2
        self._clock = clock
        self._dues = dues
        self._changes = changes
        self._reads = reads
        self._groups = groups
        self._shared_names = shared_names
        self._is_busy = False
        self._run: JobHandle | None = None
        self._heap: list[tuple[int, PopQueueKey, int]] = []
        """What becomes due, for the run that there is: the next one begins with all deliveries."""
        self._tasks: set[asyncio.Task[None]] = set()
        machine.on_state(self._watch)

    def _watch(self, state: BrokerState) -> None:
        state.table(POPPED).on_delivery = self._delivered

    def _delivered(self, queue: PopQueue, delivery: Delivery) -> None:
        if self._run is not None and self._run.is_stopped:
            self._run, self._heap = None, []
        if self._run is not None:
            heapq.heappush(self._heap, (delivery.due_ms, queue.key, delivery.pop_time_ms))

    def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        self._is_busy = False
        self._run = handle
        self._heap = [
            (delivery.due_ms, queue.key, delivery.pop_time_ms) for queue in self._changes.table for delivery in queue
        ]
        heapq.heapify(self._heap)
        self._tick(handle)

    # ---------------------------------------------------------------- what is due

    def _tick(self, handle: JobHandle) -> None:
        handle.call_later(LOOK_S, partial(self._tick, handle))
        self._look(handle)

    def _look(self, handle: JobHandle) -> None:
        now_ms = self._clock.now_ms()
        if now_ms is None or self._is_busy:
            return
        due = self._due(now_ms)
        if due:
            self._is_busy = True
            self._read(due, handle.guarded(partial(self._revive, handle, now_ms)))

    def _due(self, now_ms: int) -> list[tuple[PopQueue, Delivery]]:
        """Deliveries that are to be revived now. All that are looked at stay on the list, until they are gone."""
        due: list[tuple[PopQueue, Delivery]] = []
        looked_at: dict[_Name, int] = {}
        in_order: set[str] = set()
        while self._heap and self._heap[0][0] <= now_ms and len(due) < MAX_DELIVERIES:
            _, key, pop_time_ms = heapq.heappop(self._heap)
            queue, delivery = self._changes.table.queue(key), self._changes.table.delivery(key, pop_time_ms)
            if queue is None or delivery is None or (key, pop_time_ms) in looked_at:
                continue
            wait_ms = self._dues.left_ms(delivery, now_ms)
            if wait_ms <= 0 and delivery.is_ordered and not self._came_too_often(key.group, delivery.attempt):
                in_order.add(key.topic)
                wait_ms = AGAIN_MS
            elif wait_ms <= 0 and not self._changes.free_bits(queue, delivery):
                wait_ms = AGAIN_MS
            elif wait_ms <= 0:
                due.append((queue, delivery))
            looked_at[key, pop_time_ms] = now_ms + wait_ms
        for (key, pop_time_ms), when_ms in looked_at.items():
            heapq.heappush(self._heap, (when_ms, key, pop_time_ms))
        if in_order:
            self.on_due(in_order)
        return due

    def _came_too_often(self, group: str, deliveries: int) -> bool:
        return deliveries > self._group(group).retry_max_times

    def _group(self, name: str) -> SubscriptionGroupConfig:
        return self._machine.state.table(GROUPS).by_name[name]

    # ---------------------------------------------------------------- reading

    def _read(self, due: Sequence[tuple[PopQueue, Delivery]], done: Callable[[Sequence[_Message]], None]) -> None:
        """Read open messages of deliveries, as many as fit a unit; `done` is called at once if all are in memory."""
        found: list[_Message] = []
        for queue, delivery, bit in self._within_unit(due, found):
            wanted = self._wanted(queue, delivery, bit)
            read = _NOTHING if wanted is None else self._read_now(wanted)
            if read is None:
                task = asyncio.get_running_loop().create_task(self._read_later(due, done))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            found.append(_message(queue, delivery, bit, read))
        done(found)

    def _read_now(self, wanted: Wanted) -> Found | None:
        """What is there, None if that needs the disk. What has rotted is nothing, as it is when it comes from disk."""
        try:
            return self._reads.now(wanted)
        except LogError:
            return _NOTHING

    async def _read_later(
        self, due: Sequence[tuple[PopQueue, Delivery]], done: Callable[[Sequence[_Message]], None]
    ) -> None:
        found: list[_Message] = []
        for queue, delivery, bit in self._within_unit(due, found):
            wanted, read = self._wanted(queue, delivery, bit), None
            if wanted is not None:
                try:
                    read = self._reads.now(wanted, await self._reads.later(wanted))
                except (LogError, OSError):
                    read = None
            found.append(_message(queue, delivery, bit, read))
        done(found)

    def _within_unit(
        self, due: Sequence[tuple[PopQueue, Delivery]], found: Sequence[_Message]
    ) -> Iterator[tuple[PopQueue, Delivery, int]]:
        """The messages to read, until what is found of them fills a unit."""
        size = 0
        for queue, delivery in due:
            for bit in bits_in(self._changes.free_bits(queue, delivery)):
                yield queue, delivery, bit
                record = found[-1].record
                size += 0 if record is None else len(record.body) + len(record.properties)
                if size > self._unit_bytes:
                    return

    @property
    def _unit_bytes(self) -> int:
        return min(MAX_UNIT_BYTES, self._machine.log.segment_bytes // MAX_SEGMENT_SHARE)

    def _wanted(self, queue: PopQueue, delivery: Delivery, bit: int) -> Wanted | None:
        topic = self._machine.topic(queue.key.topic)
        if topic is None:
            return None
        return Wanted(topic.queue(queue.key.queue_id), offsets_of(delivery.offsets, bit)[0], 1)

    # ---------------------------------------------------------------- reviving

    def _revive(self, handle: JobHandle, now_ms: int, messages: Sequence[_Message]) -> None:
        """Write the copies of messages that are still open and that nothing is in flight for."""
        self._is_busy = False
        unit = _Unit(self._unit_bytes)
        later: dict[_Name, int] = {}
        lacking: dict[str, dict[_Name, int]] = {}
        for queue, delivery, bit, record in messages:
            name = (queue.key, delivery.pop_time_ms)
            if self._changes.table.delivery(*name) is not delivery:
                continue
            if not bit & self._changes.free_bits(queue, delivery) or not self._dues.is_due(delivery):
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
                unit.add(queue, delivery, bit, copy_of(record, topic, delivery.pop_time_ms))
                unit.buried += topic == dead_letter_topic(queue.key.group)
        self._look_again(later)
        for topic, waiting in lacking.items():
            self._make(handle, topic, waiting)
        if unit.copies:
            self._write(handle, unit, now_ms)

    def _look_again(self, whens_ms: Mapping[_Name, int]) -> None:
        """Look at deliveries at these group times, and at those that follow meanwhile.

        1. Fifty deliveries come first, and their retry topic cannot be made. 2. They stay due. 3. Each look takes the
        fifty that come first, and finds no other one, ever.
        """
        if whens_ms:
            self._heap = [entry for entry in self._heap if entry[1:] not in whens_ms]
            self._heap += ((when_ms, *name) for name, when_ms in whens_ms.items())
            heapq.heapify(self._heap)

    def _is_ending(self, queue: PopQueue) -> bool:
        """Whether the deletion of a topic or a group is in flight, which ends the deliveries."""
        return self._machine.topic(queue.key.topic) is None or not self._groups.has_group(queue.key.group)

    def _found_unreadable(self, queue: PopQueue) -> None:
        self.unreadable += 1
        _logger.warning(
            "event=popped_message_unreadable topic=%s queue=%d consequence='tried again later'", *queue.key[1:]
        )

    def _topic_for(self, queue: PopQueue, delivery: Delivery, record: MessageRecord) -> str:
        """The topic that a message goes to."""
        group = queue.key.group
        if delivery.is_ordered or record.reconsume_times >= self._group(group).retry_max_times:
            return dead_letter_topic(group)
        avoids_v1 = self._shared_names.are_unsafe
        if is_retry_topic(queue.key.topic):
            # Not the topic that the record tells of: who sent it to the retry topic by itself has chosen that.
            popped = self._shared_names.popped_topic(group, queue.key.topic) if avoids_v1 else None
            return queue.key.topic if popped is None else pop_retry_topic(group, popped, Retry.V2)
        retry = Retry.V2 if self._takes_v2 or avoids_v1 else Retry.V1
        return pop_retry_topic(group, queue.key.topic, retry)

    def _make(self, handle: JobHandle, topic: str, waiting: Mapping[_Name, int]) -> None:
        """Create a topic that deliveries wait for; they are looked at once it is there."""

        def made(error: LogError | None) -> None:
            if error is None:
                self._look_again(waiting)

        handle.require_running()
        config = TopicConfig(topic, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
        self._machine.proposals.ensure_topic(config, handle.guarded(made))

    def _write(self, handle: JobHandle, unit: _Unit, now_ms: int) -> None:
        closed = unit.closed
        go_on = handle.guarded(partial(self._look, handle))

        def settled(outcome: UnitOutcome) -> None:
            self._changes.end_closing(closed)
            if isinstance(outcome, Stored):
                self.buried += unit.buried
                self.revived += len(unit.copies) - unit.buried
                self.on_due({key.topic for key, _, _ in closed})
            go_on()

        self._changes.begin_closing(closed)
        try:
            handle.write(unit.copies, [unit.command], done=settled)
        except (BusyError, LogFullError):
            self._changes.end_closing(closed)
        except TooLargeError:
            self._changes.end_closing(closed)
            for queue, _ in unit.deliveries:
                self._found_unreadable(queue)
            self._look_again({(queue.key, each.pop_time_ms): now_ms + REPAIR_MS for queue, each in unit.deliveries})


class _Unit:
    """What one unit says."""

    def __init__(self, limit: int) -> None:
        self.copies: list[NewRecord] = []
        self.closed: list[tuple[PopQueueKey, int, int]] = []
        self.deliveries: dict[tuple[PopQueue, Delivery], None] = {}
        self.size = self.buried = 0
        self._limit = limit
        self._rows: dict[tuple[PopQueueKey, int], ReviveRow] = {}

    def has_room_for(self, record: MessageRecord) -> bool:
        """Whether one more is within the limit; the first always is."""
        return not self.copies or self.size + len(record.body) + len(record.properties) <= self._limit

    def add(self, queue: PopQueue, delivery: Delivery, bit: int, copy: NewRecord) -> None:
        """One more message."""
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
        """The end of their deliveries."""
        return Revive(tuple(self._rows.values()))


def _message(queue: PopQueue, delivery: Delivery, bit: int, read: Found | None) -> _Message:
    """A message with its record, if that is what was read."""
    record = None
    if read is not None and read.records:
        try:
            record = decode_record(read.records[0], verify_crc=True)
        except RecordError:
            record = None
    if record is not None and [record.queue_offset] != offsets_of(delivery.offsets, bit):
        record = None
    return _Message(queue, delivery, bit, record)


def _nobody_waits(_topics: Iterable[str]) -> None:
    """What `on_due` is until somebody sets it."""
