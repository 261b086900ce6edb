"""Table of popped queues: how far each consumer group has popped a queue, and the open deliveries there.

A row is kept while its topic and its group exist. If a group pops a queue, its committed offset there follows from this
table: the lowest offset that is new or still open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.commands import (
    NO_ROW,
    Ack,
    AckRow,
    Pop,
    PopQueueKey,
    PopRow,
    ResetPop,
    Revive,
    ReviveRow,
)
from dledger_broker.features.pop.deliveries import Delivery, DeliveryRow, PopQueue
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.tables import Changes, FindTable, Frame, Table, TableKey, in_slices

_NO_QUEUES: Final[Mapping[int, PopQueue]] = {}


class PopQueueFrame(msgspec.Struct, frozen=True, tag="pop-queues"):
    """Snapshot frame of popped queues: (group, topic, queue id, created position, next offset, last pop time)."""

    rows: list[tuple[str, str, int, int, int, int]]


class DeliveryFrame(msgspec.Struct, frozen=True, tag="deliveries"):
    """Snapshot frame of deliveries. The frames of their queues precede them in the stream."""

    rows: list[tuple[str, str, int, DeliveryRow]]


class EndedDeliveriesFrame(msgspec.Struct, frozen=True, tag="ended-deliveries"):
    """Snapshot frame with the number of messages whose deliveries were ended by resets, trims and deletions."""

    messages: int


class PopTable(Table):
    """Table of popped queues and their open deliveries.

    - `open_count` is the number of messages that are delivered and not done with.
    - `ended` is the number of messages whose deliveries were ended by resets, trims, and deletions or shrinking of
      topics.
    - `on_delivery` is called with each new delivery. It belongs to the node, not to the replicated state.
    - `on_lease_ended` is called with the client of a leased delivery that ends. The table of leases sets it.
    """

    __slots__ = (
        "_groups",
        "_new",
        "_of_group",
        "_of_queue",
        "_of_topic",
        "_offsets",
        "_queues",
        "_topics",
        "ended",
        "on_delivery",
        "on_lease_ended",
        "open_count",
    )

    frames = (PopQueueFrame, DeliveryFrame, EndedDeliveriesFrame)

    def __init__(self) -> None:
        self.ended = self.open_count = 0
        self.on_delivery: Callable[[PopQueue, Delivery], None] | None = None
        self.on_lease_ended: Callable[[str], None] | None = None
        self._queues: dict[PopQueueKey, PopQueue] = {}
        self._of_queue: dict[tuple[str, int], list[PopQueue]] = {}
        """Popped queues of all groups, by topic and queue id."""
        self._of_topic: dict[str, dict[PopQueueKey, PopQueue]] = {}
        self._of_group: dict[tuple[str, str], dict[int, PopQueue]] = {}
        """Popped queues of each group and topic, by queue id."""
        self._new: list[tuple[PopQueue, Delivery]] = []

    def meet(self, find: FindTable) -> None:
        self._topics = find.topics
        self._groups = find.table(GROUPS).by_name
        self._offsets = find.table(OFFSETS)
        self._offsets.is_pop_queue = self.has_queue

    def __iter__(self) -> Iterator[PopQueue]:
        return iter(self._queues.values())

    @property
    def digest(self) -> int:
        """Digest of the table, 0 if the table is empty."""
        ended = item_hash("ended-deliveries", self.ended) if self.ended else 0
        return (sum(queue.digest for queue in self) + ended) & MASK

    @property
    def has_deliveries(self) -> bool:
        """True if any message is delivered and not done with."""
        return self.open_count > 0

    def has_queue(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group pops a queue."""
        return (group, topic, queue_id) in self._queues

    def queue(self, key: PopQueueKey) -> PopQueue | None:
        """Return a queue as a group pops it, or None if the group never popped it."""
        return self._queues.get(key)

    def queues_of(self, group: str, topic: str) -> Mapping[int, PopQueue]:
        """Return the queues of a topic as a group pops them, by queue id."""
        return self._of_group.get((group, topic), _NO_QUEUES)

    def delivery(self, key: PopQueueKey, pop_time_ms: int) -> Delivery | None:
        """Return a delivery that has open messages, or None."""
        queue = self._queues.get(key)
        return None if queue is None else queue.deliveries.get(pop_time_ms)

    def lease(self, key: PopQueueKey, pop_time_ms: int, client: str) -> None:
        """Hide a delivery of a snapshot under the lease of a client."""
        queue = self._queues[key]
        queue.lease(queue.deliveries[pop_time_ms], client)

    def confirm(self, key: PopQueueKey, created_position: int, pop_time_ms: int, client: str) -> bool:
        """Hide a delivery under the lease of a client from now on. Returns False if it is over, or leased already."""
        queue = self._queues.get(key)
        delivery = None if queue is None else queue.deliveries.get(pop_time_ms)
        if queue is None or delivery is None or queue.created_position != created_position or delivery.client:
            return False
        queue.lease(delivery, client)
        return True

    # ---------------------------------------------------------------- commands

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case Pop():
                self.pop(command)
            case Ack(rows=acks):
                for ack in acks:
                    self._ack(ack)
            case Revive(rows=revivals):
                for revival in revivals:
                    self._revive(revival)
            case ResetPop():
                self._reset(command)

    def pop(self, command: Pop, client: str = "") -> None:
        """Apply a pop, whose messages stay hidden under the lease of a client if one is given."""
        if command.group in self._groups:
            for row in command.rows:
                self._pop(command, row, client)

    def _pop(self, command: Pop, row: PopRow, client: str) -> None:
        topic = self._topics.get(row.topic)
        if topic is None or topic.created_position != row.created_position:
            return
        key = PopQueueKey(command.group, row.topic, row.queue_id)
        queue = self._queues.get(key)
        if (NO_ROW if queue is None else queue.next_offset) != row.expected:
            return
        kept = topic.queue(row.queue_id).first_offset
        if row.next_offset < kept or (row.offsets and row.offsets[0] < kept):
            return  # A trim that was in flight has removed the popped messages.
        if row.offsets and queue is not None and command.pop_time_ms <= queue.last_pop_ms:
            return
        if queue is None:
            queue = self._add(PopQueue(key, row.created_position, row.next_offset))
        attempt = 1
        if row.again:
            earlier = queue.deliveries.get(row.again)
            if earlier is None:
                return
            same = bool(command.attempt_id) and earlier.attempt_id == command.attempt_id
            attempt = earlier.attempt if same else earlier.attempt + 1
            self._settle(queue, earlier, closed=earlier.open_bits)
        queue.next_offset = row.next_offset
        if row.offsets:
            self._deliver(
                queue,
                Delivery(
                    command.pop_time_ms,
                    row.offsets,
                    0,
                    0,
                    command.invisible_ms,
                    attempt,
                    command.is_ordered,
                    command.attempt_id,
                    client,
                ),
            )
        self._commit(queue)

    def _add(self, queue: PopQueue) -> PopQueue:
        self._queues[queue.key] = queue
        self._of_queue.setdefault(queue.key[1:], []).append(queue)
        self._of_topic.setdefault(queue.key.topic, {})[queue.key] = queue
        self._of_group.setdefault(queue.key[:2], {})[queue.key.queue_id] = queue
        return queue

    def _deliver(self, queue: PopQueue, delivery: Delivery) -> None:
        queue.add(delivery)
        self.open_count += delivery.open_bits.bit_count()
        self._new.append((queue, delivery))

    def _settle(self, queue: PopQueue, delivery: Delivery, *, acked: int = 0, closed: int = 0) -> None:
        before = queue.open_count
        queue.settle(delivery, acked=acked, closed=closed)
        self.open_count -= before - queue.open_count
        if delivery.client and not delivery.open_bits:
            self._lease_ended(delivery.client)

    def _lease_ended(self, client: str) -> None:
        if self.on_lease_ended is not None:
            self.on_lease_ended(client)

    def _end_all(self, queue: PopQueue) -> None:
        clients = [delivery.client for delivery in queue if delivery.client]
        ended = queue.end_all()
        for client in clients:
            self._lease_ended(client)
        self.open_count -= ended
        self.ended += ended

    def _ack(self, row: AckRow) -> None:
        found = self._find(row)
        if found is None:
            return
        queue, delivery = found
        if not row.new_pop_time_ms:
            self._settle(queue, delivery, acked=row.bits)
        elif row.bits & delivery.open_bits and row.new_pop_time_ms > queue.last_pop_ms:
            offset = delivery.offsets[row.bits.bit_length() - 1]
            hidden = Delivery(
                row.new_pop_time_ms,
                (offset,),
                0,
                0,
                row.invisible_ms,
                delivery.attempt,
                delivery.is_ordered,
            )
            self._settle(queue, delivery, closed=row.bits)
            self._deliver(queue, hidden)
        self._commit(queue)

    def _revive(self, row: ReviveRow) -> None:
        found = self._find(row)
        if found is not None:
            queue, delivery = found
            self._settle(queue, delivery, closed=row.bits)
            self._commit(queue)

    def _reset(self, command: ResetPop) -> None:
        queue = self._queues.get(PopQueueKey(command.group, command.topic, command.queue_id))
        if queue is None or queue.created_position != command.created_position:
            return
        kept = self._topics[command.topic].queue(command.queue_id).first_offset
        self._end_all(queue)
        queue.next_offset = max(command.offset, kept)
        self._commit(queue)

    def _find(self, row: AckRow | ReviveRow) -> tuple[PopQueue, Delivery] | None:
        queue = self._queues.get(PopQueueKey(row.group, row.topic, row.queue_id))
        if queue is None or queue.created_position != row.created_position:
            return None
        delivery = queue.deliveries.get(row.pop_time_ms)
        return None if delivery is None else (queue, delivery)

    def _commit(self, queue: PopQueue) -> None:
        if self._offsets.get(*queue.key) != queue.lowest_open:
            self._offsets.commit(*queue.key, queue.lowest_open)

    # ---------------------------------------------------------------- changes by other tables

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Note the time at which this replica applied the new deliveries."""
        if not self._new:
            return
        new, self._new = self._new, []
        applied_at = now()
        for queue, delivery in new:
            delivery.applied_at = applied_at
            if self.on_delivery is not None:
                self.on_delivery(queue, delivery)

    def on_topic_put(self, topic: TopicState) -> None:
        """End the deliveries in queues that the topic no longer has.

        If the topic gets these queues back, their messages are delivered again: the group continues at the lowest open
        message.
        """
        name, queues = topic.config.topic_name, topic.config.read_queue_nums
        for queue in self._of_topic.get(name, {}).values():
            if queue.key.queue_id >= queues and queue.deliveries:
                queue.next_offset = queue.lowest_open
                self._end_all(queue)

    def on_queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """End the deliveries of trimmed messages."""
        for queue in self._of_queue.get((topic, queue_id), ()):
            if queue.lowest_open >= first_offset:
                continue
            for delivery in list(queue):
                trimmed = sum(1 << number for number, offset in enumerate(delivery.offsets) if offset < first_offset)
                self.ended += (trimmed & delivery.open_bits).bit_count()
                self._settle(queue, delivery, closed=trimmed)
            queue.next_offset = max(queue.next_offset, first_offset)
            self._commit(queue)

    def on_topic_deleted(self, topic: str) -> None:
        self._drop(list(self._of_topic.get(topic, ())))

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        _ = clean_offsets
        self._drop([key for key in self._queues if key.group == group])

    def _drop(self, keys: Iterable[PopQueueKey]) -> None:
        for key in keys:
            queue = self._queues.pop(key)
            self._end_all(queue)
            others = self._of_queue[key[1:]]
            others.remove(queue)
            if not others:
                del self._of_queue[key[1:]]
            of_topic = self._of_topic[key.topic]
            del of_topic[key]
            if not of_topic:
                del self._of_topic[key.topic]
            of_group = self._of_group[key[:2]]
            del of_group[key.queue_id]
            if not of_group:
                del self._of_group[key[:2]]

    # ---------------------------------------------------------------- snapshots

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        captured: dict[str, Iterable[Frame]] = {}
        if self._queues:
            queues = [(*queue.key, queue.created_position, queue.next_offset, queue.last_pop_ms) for queue in self]
            captured["pop-queues"] = map(PopQueueFrame, in_slices(queues))
        deliveries = [(*queue.key, delivery.row) for queue in self for delivery in queue]
        if deliveries:
            captured["deliveries"] = map(DeliveryFrame, in_slices(deliveries))
        if self.ended:
            captured["ended-deliveries"] = [EndedDeliveriesFrame(self.ended)]
        return captured

    def restore_frame(self, frame: Frame, now: float) -> None:
        match frame:
            case PopQueueFrame(rows=queues):
                for group, topic, queue_id, created_position, next_offset, last_pop_ms in queues:
                    key = PopQueueKey(group, topic, queue_id)
                    self._add(PopQueue(key, created_position, next_offset, last_pop_ms))
            case DeliveryFrame(rows=deliveries):
                for group, topic, queue_id, row in deliveries:
                    delivery = Delivery(*row)
                    delivery.applied_at = now
                    self._queues[PopQueueKey(group, topic, queue_id)].restore(delivery)
                    self.open_count += delivery.open_bits.bit_count()
            case EndedDeliveriesFrame(messages=messages):
                self.ended = messages


POPPED: Final = TableKey("popped", PopTable)
