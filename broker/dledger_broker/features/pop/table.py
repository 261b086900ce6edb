"""Table of popped queues: how far each consumer group has popped a queue, and the deliveries that are open there.

A row is kept while its topic and its group are there. What a group has committed in a queue that it pops is the lowest
offset that is not done with, which follows from what is applied here.
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


class PopQueueFrame(msgspec.Struct, frozen=True, tag="pop-queues"):
    """Popped queues as (group, topic, queue id, created position, next offset, last pop time)."""

    rows: list[tuple[str, str, int, int, int, int]]


class DeliveryFrame(msgspec.Struct, frozen=True, tag="deliveries"):
    """Deliveries of queues, which come before them in the stream."""

    rows: list[tuple[str, str, int, DeliveryRow]]


class EndedDeliveriesFrame(msgspec.Struct, frozen=True, tag="ended-deliveries"):
    """How many messages were open when resets, trims and deletions ended their deliveries."""

    messages: int


class PopTable(Table):
    """The replicated part.

    `open_count` counts messages that are delivered and not done with. `ended` counts messages whose deliveries were
    ended by resets, trims, and deletions or shrinking of topics.
    `on_delivery` is a node's own: it is told of each new delivery.
    """

    __slots__ = ("_groups", "_new", "_of_queue", "_offsets", "_queues", "_topics", "ended", "on_delivery", "open_count")

    frames = (PopQueueFrame, DeliveryFrame, EndedDeliveriesFrame)

    def __init__(self) -> None:
        self.ended = self.open_count = 0
        self.on_delivery: Callable[[PopQueue, Delivery], None] | None = None
        self._queues: dict[PopQueueKey, PopQueue] = {}
        self._of_queue: dict[tuple[str, int], list[PopQueue]] = {}
        """Those of all groups, by topic and queue id."""
        self._new: list[tuple[PopQueue, Delivery]] = []

    def meet(self, find: FindTable) -> None:
        """See `Table.meet`."""
        self._topics = find.topics
        self._groups = find.table(GROUPS).by_name
        self._offsets = find.table(OFFSETS)
        self._offsets.is_pop_queue = self.has_queue

    def __iter__(self) -> Iterator[PopQueue]:
        return iter(self._queues.values())

    @property
    def digest(self) -> int:
        """See `Table.digest`; that of an empty table is 0."""
        ended = item_hash("ended-deliveries", self.ended) if self.ended else 0
        return (sum(queue.digest for queue in self) + ended) & MASK

    @property
    def has_deliveries(self) -> bool:
        """Whether any message is delivered and not done with."""
        return self.open_count > 0

    def has_queue(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a group pops a queue."""
        return (group, topic, queue_id) in self._queues

    def queue(self, key: PopQueueKey) -> PopQueue | None:
        """A queue as a group pops it; None if it never did."""
        return self._queues.get(key)

    def delivery(self, key: PopQueueKey, pop_time_ms: int) -> Delivery | None:
        """A delivery with open messages."""
        queue = self._queues.get(key)
        return None if queue is None else queue.deliveries.get(pop_time_ms)

    # ---------------------------------------------------------------- commands

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case Pop(group=group, rows=pops):
                if group in self._groups:
                    for pop in pops:
                        self._pop(command, pop)
            case Ack(rows=acks):
                for ack in acks:
                    self._ack(ack)
            case Revive(rows=revivals):
                for revival in revivals:
                    self._revive(revival)
            case ResetPop():
                self._reset(command)

    def _pop(self, command: Pop, row: PopRow) -> None:
        topic = self._topics.get(row.topic)
        if topic is None or topic.created_position != row.created_position:
            return
        key = PopQueueKey(command.group, row.topic, row.queue_id)
        queue = self._queues.get(key)
        if (NO_ROW if queue is None else queue.next_offset) != row.expected:
            return
        kept = topic.queue(row.queue_id).first_offset
        if row.next_offset < kept or (row.offsets and row.offsets[0] < kept):
            return  # a trim that was on its way has taken what was popped
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
                ),
            )
        self._commit(queue)

    def _add(self, queue: PopQueue) -> PopQueue:
        self._queues[queue.key] = queue
        self._of_queue.setdefault(queue.key[1:], []).append(queue)
        return queue

    def _deliver(self, queue: PopQueue, delivery: Delivery) -> None:
        queue.add(delivery)
        self.open_count += delivery.open_bits.bit_count()
        self._new.append((queue, delivery))

    def _settle(self, queue: PopQueue, delivery: Delivery, *, acked: int = 0, closed: int = 0) -> None:
        before = queue.open_count
        queue.settle(delivery, acked=acked, closed=closed)
        self.open_count -= before - queue.open_count

    def _end_all(self, queue: PopQueue) -> None:
        ended = queue.end_all()
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

    # ---------------------------------------------------------------- what others do

    def batch_applied(self, now: Callable[[], float]) -> None:
        """See `Table.batch_applied`: notes when this replica has applied deliveries."""
        if not self._new:
            return
        new, self._new = self._new, []
        applied_at = now()
        for queue, delivery in new:
            delivery.applied_at = applied_at
            if self.on_delivery is not None:
                self.on_delivery(queue, delivery)

    def on_topic_put(self, topic: TopicState) -> None:
        """See `Table.on_topic_put`: nobody pops queues that the topic has no more.

        What was open there is delivered again if it gets them back: the group goes on at the lowest open message.
        """
        name, queues = topic.config.topic_name, topic.config.read_queue_nums
        for queue in self:
            if queue.key.topic == name and queue.key.queue_id >= queues and queue.deliveries:
                queue.next_offset = queue.lowest_open
                self._end_all(queue)

    def on_queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """See `Table.on_queue_trimmed`: what was open and is gone ends."""
        for queue in self._of_queue.get((topic, queue_id), ()):
            if queue.lowest_open >= first_offset:
                continue
            for delivery in list(queue):
                gone = sum(1 << number for number, offset in enumerate(delivery.offsets) if offset < first_offset)
                self.ended += (gone & delivery.open_bits).bit_count()
                self._settle(queue, delivery, closed=gone)
            queue.next_offset = max(queue.next_offset, first_offset)
            self._commit(queue)

    def on_topic_deleted(self, topic: str) -> None:
        """See `Table.on_topic_deleted`."""
        self._drop([key for key in self._queues if key.topic == topic])

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """See `Table.on_group_deleted`."""
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

    # ---------------------------------------------------------------- snapshots

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
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
        """See `Table.restore_frame`."""
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
