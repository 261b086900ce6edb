"""Choice of messages for a pop: the queues that the pop searches, and the messages that it takes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from random import Random
from typing import Final, NamedTuple

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.changes import MAX_ROWS, PopChanges
from dledger_broker.features.pop.commands import NO_ROW, PopQueueKey, PopRow
from dledger_broker.features.pop.counts import OrderedCounts
from dledger_broker.features.pop.deliveries import Delivery, PopQueue
from dledger_broker.features.pop.reading import PopReads, Read, ReadPlan, ReadRecords, offset_of
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.pop import Retry, pop_retry_topic

FROM_START: Final = 0
"""Value of `init_mode` of a group that begins at the first kept message of a queue."""
READS_ON: Final = 2
"""Maximum number of further reads of a queue for a pop in order.

A read ends where a file of the queue ends, or where the part in memory begins.
"""
RETRIES_FIRST: Final = 5
"""Number of pops of which, on average, a single pop searches for redelivered messages before new messages."""


class PopQuery(NamedTuple):
    """Request of a pop for messages."""

    group: str
    topic: str
    queue_id: int
    """Queue id, or -1 for any queue."""
    max_messages: int
    max_bytes: int
    message_filter: MessageFilter | None
    init_mode: int
    is_ordered: bool
    attempt_id: str
    reads_v1: bool = True
    """True if the pop may search the retry topic of the older name, which other groups may share."""
    client: str = ""
    """Owner of the lease under which the messages stay hidden, or "" for a fixed invisible time."""
    awaits_confirmation: bool = False
    """True if the lease is to begin only once the messages have reached their client."""


class Source(NamedTuple):
    """Queue that a pop searches."""

    retry: Retry
    topic: TopicState
    queue_id: int


class QueueBatch(NamedTuple):
    """Messages taken of one queue: the row for the command, and the records, one after another."""

    source: Source
    row: PopRow
    records: tuple[bytes, ...]
    counts: tuple[int, ...] = ()
    """Number of earlier deliveries of each message; empty if all are first deliveries."""


class Choice:
    """Messages that a pop has chosen.

    `is_full` is True if a queue was passed over because too many of its messages are open. `remaining` is the number of
    messages that are left in the searched queues.
    """

    def __init__(self) -> None:
        self.batches: list[QueueBatch] = []
        self.cold: list[ReadPlan] = []
        """Reads that were not done because they need the disk."""
        self.messages = self.size = self.remaining = 0
        self.is_full = False


class Chooser:
    """Chooser of messages on the leader, in the turn that proposes the pop.

    A pop takes messages of at most `MAX_ROWS` queues. At most `max_pop_in_flight` messages of a queue are open.

    Each pop draws by `rng` which queue it searches first, and whether it searches retry topics first. A counter of all
    pops could run in step with consumers that take turns, so that some of them would never get their retries.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        reads: PopReads,
        changes: PopChanges,
        live: LiveConfig,
        is_due: Callable[[Delivery], bool],
        rng: Random,
        counts: OrderedCounts,
    ) -> None:
        self._rng = rng
        self.counts = counts
        self._machine = machine
        self._changes = changes
        self._live = live
        self._is_due = is_due
        self._reads = reads

    def choose(self, query: PopQuery, read: Read | None = None, *, is_question: bool = False) -> Choice:
        """Return the messages for a pop. `read` is an earlier read for this pop.

        A question proposes nothing, so the limit on rows does not apply.
        """
        choice = Choice()
        for source in self._sources(query):
            if len(choice.batches) >= MAX_ROWS and not is_question:
                # Without this limit, the first pop of 20,000 empty queues would need more rows than a segment holds.
                # The remaining queues are searched once these rows are applied.
                break
            if choice.messages >= query.max_messages or choice.size >= query.max_bytes:
                choice.remaining += self._count_unpopped(query, source)
            elif query.is_ordered:
                self._select_ordered(choice, query, source, read)
            else:
                self._select_next(choice, query, source, read)
        return choice

    def has_messages(self, query: PopQuery) -> bool:
        """Return whether a pop would find a message, as far as that is certain without reading."""
        for source in self._sources(query):
            key = PopQueueKey(query.group, source.topic.config.topic_name, source.queue_id)
            popped = self._changes.table.queue(key)
            if query.is_ordered and popped is not None and popped.deliveries:
                if self._can_redeliver(query, popped):
                    return True
            elif self._count_unpopped(query, source):
                return True
        return False

    def start_of(self, query: PopQuery, source: Source) -> int:
        """Return the offset at which a pop of a queue begins."""
        key = PopQueueKey(query.group, source.topic.config.topic_name, source.queue_id)
        queue = source.topic.queue(source.queue_id)
        start = self._changes.next_offset(key)
        if start == NO_ROW:
            committed = self._machine.state.table(OFFSETS).get(*key)
            if committed is not None and committed >= 0:
                start = min(committed, queue.next_offset)
            elif query.init_mode == FROM_START or source.retry is not Retry.NONE or not queue.first_offset:
                start = queue.first_offset  # A young topic begins at its start, as for pulls.
            else:
                start = queue.next_offset
        return max(start, queue.first_offset)

    # ---------------------------------------------------------------- queues

    def _sources(self, query: PopQuery) -> Iterator[Source]:
        """Yield the queues to search, in a random order that serves each queue."""
        normal = self._queues_of(query, Retry.NONE)
        if query.is_ordered:
            repeated = self._queues_of_attempt(query)
            yield from repeated or normal
            return
        retries = (Retry.V1, Retry.V2) if query.reads_v1 else (Retry.V2,)
        retry_sources = [source for retry in retries for source in self._queues_of(query, retry)]
        yield from (
            chain(retry_sources, normal) if self._rng.randrange(RETRIES_FIRST) == 0 else chain(normal, retry_sources)
        )

    def _queues_of_attempt(self, query: PopQuery) -> list[Source]:
        """Return the queues from which an earlier pop of the same attempt has messages that are not done with.

        A repeated attempt searches no other queue. Otherwise it could get messages of another queue, and nobody would
        get the earlier ones before their invisible time is over.
        """
        topic = self._machine.topic(query.topic)
        if topic is None or not query.attempt_id:
            return []
        return [
            Source(Retry.NONE, topic, queue_id)
            for queue_id, popped in sorted(self._changes.table.queues_of(query.group, query.topic).items())
            if query.queue_id in (-1, queue_id) and any(each.attempt_id == query.attempt_id for each in popped)
        ]

    def _queues_of(self, query: PopQuery, retry: Retry) -> Iterator[Source]:
        topic = self._machine.topic(pop_retry_topic(query.group, query.topic, retry))
        if topic is None:
            return
        count = topic.config.read_queue_nums
        if retry is Retry.NONE and query.queue_id >= 0:
            yield Source(retry, topic, query.queue_id)
            return
        begin = self._rng.randrange(count) if count > 1 else 0
        for queue_id in self._queues_with_messages(query, topic, chain(range(begin, count), range(begin))):
            yield Source(retry, topic, queue_id)

    def _queues_with_messages(self, query: PopQuery, topic: TopicState, queue_ids: Iterable[int]) -> Iterator[int]:
        """Yield the queues that may have messages for the group.

        Most of a topic's thousands of queues have no messages, and each pop checks all of them. So this loop does as
        little as possible.
        """
        name, is_ordered = topic.config.topic_name, query.is_ordered
        queues, popped_queues = topic.queues, self._changes.table.queues_of(query.group, name)
        changing = self._changes.changing(query.group, name)
        for queue_id in queue_ids:
            queue, popped = queues.get(queue_id), popped_queues.get(queue_id)
            if (
                queue is None
                or popped is None
                or queue.next_offset > popped.next_offset
                or (is_ordered and popped.deliveries)
                or queue_id in changing
            ):
                yield queue_id

    def _count_unpopped(self, query: PopQuery, source: Source) -> int:
        return max(0, source.topic.queue(source.queue_id).next_offset - self.start_of(query, source))

    # ---------------------------------------------------------------- messages

    def _select_next(self, choice: Choice, query: PopQuery, source: Source, read: Read | None) -> None:
        """Take the messages that follow in a queue."""
        name = source.topic.config.topic_name
        key = PopQueueKey(query.group, name, source.queue_id)
        queue, start = source.topic.queue(source.queue_id), self.start_of(query, source)
        expected = self._changes.next_offset(key)
        max_open = self._live.config.max_pop_in_flight
        max_messages = min(query.max_messages - choice.messages, max_open - self._changes.open_count(key))
        if start >= queue.next_offset:
            if expected == NO_ROW:
                # Record where the group begins, so that later messages belong to the group, whichever `init_mode` its
                # next pop has.
                row = PopRow(name, source.topic.created_position, source.queue_id, expected, start)
                choice.batches.append(QueueBatch(source, row, ()))
            return
        if max_messages <= 0:
            choice.is_full = True
            choice.remaining += queue.next_offset - start
            return
        max_bytes = query.max_bytes - choice.size
        plan = ReadPlan(queue, start, max_messages, max_bytes, query.message_filter)
        result = self._read(choice, plan, read, reads_on=READS_ON if query.is_ordered else 0)
        if result is None:
            return
        next_offset, records = result
        if next_offset == start:
            return
        offsets = tuple(map(offset_of, records))
        row = PopRow(name, source.topic.created_position, source.queue_id, expected, next_offset, offsets)
        choice.remaining += max(0, queue.next_offset - next_offset)
        self._add(choice, QueueBatch(source, row, records))

    def _select_ordered(self, choice: Choice, query: PopQuery, source: Source, read: Read | None) -> None:
        """Take the messages that follow in a queue, in order.

        If the group has open messages of the queue, nothing is taken while any of them is hidden. After that, they are
        taken again together with what follows them.
        """
        name = source.topic.config.topic_name
        key = PopQueueKey(query.group, name, source.queue_id)
        if self._changes.is_popping(key):
            return
        popped = self._changes.table.queue(key)
        head = None if popped is None else popped.lowest_delivery
        if popped is None or head is None:
            self._select_next(choice, query, source, read)
        elif self._can_redeliver(query, popped):
            self._redeliver(choice, query, source, popped, head, read)

    def _can_redeliver(self, query: PopQuery, popped: PopQueue) -> bool:
        """Return whether no message of a queue is hidden. A message behind a hidden message must not be shown."""
        return all(
            delivery.is_ordered
            and self._changes.is_free(popped, delivery)
            and (self._is_due(delivery) or (bool(query.attempt_id) and query.attempt_id == delivery.attempt_id))
            for delivery in popped
        )

    def _redeliver(
        self, choice: Choice, query: PopQuery, source: Source, popped: PopQueue, head: Delivery, read: Read | None
    ) -> None:
        """Begin again at the lowest message that is not done with, as RocketMQ does at the committed offset.

        Messages behind it that were acknowledged are delivered again, too, and so are messages that have arrived since.

        Attempts count for the first message of a delivery, because the messages behind it have not been tried. So
        `head` keeps its count if its first message is the lowest open message. All other deliveries end before, and the
        queue goes back to where they began. The count that clients see of each message is separate (`counts`).
        """
        queue, start = source.topic.queue(source.queue_id), popped.lowest_open
        max_messages = min(query.max_messages - choice.messages, self._live.config.max_pop_in_flight)
        if len(self._queues_of_attempt(query)) > 1:
            # Messages that have arrived since must not take the place of messages of the attempt's other queues.
            max_messages = min(max_messages, popped.next_offset - start)
        max_bytes = query.max_bytes - choice.size
        plan = ReadPlan(queue, start, max_messages, max_bytes, query.message_filter)
        result = self._read(choice, plan, read, reads_on=READS_ON)
        if result is None or result.next_offset == start:
            return
        is_first = head.offsets[0] == start
        other_deliveries = [delivery for delivery in popped if not (is_first and delivery is head)]
        rows_left = MAX_ROWS - 1 - len(choice.batches)
        expected = self._end_deliveries(choice, source, popped, other_deliveries[: max(0, rows_left)])
        if len(other_deliveries) > rows_left:
            return  # The remaining deliveries end once these rows are applied.
        is_same = bool(query.attempt_id) and query.attempt_id == head.attempt_id
        row = PopRow(
            source.topic.config.topic_name,
            source.topic.created_position,
            source.queue_id,
            expected,
            result.next_offset,
            tuple(map(offset_of, result.records)),
            head.pop_time_ms if is_first else 0,
        )
        choice.remaining += max(0, queue.next_offset - result.next_offset)
        counts = self.counts.of(popped.key, row.offsets, popped.next_offset, is_same=is_same)
        self._add(choice, QueueBatch(source, row, result.records, counts))

    @staticmethod
    def _end_deliveries(choice: Choice, source: Source, popped: PopQueue, deliveries: Sequence[Delivery]) -> int:
        """End deliveries by rows that deliver nothing, and return the offset to which the queue goes back.

        That offset is the lowest open offset of the deliveries. Because these rows deliver nothing, no message is lost
        if a trim in between voids them.
        """
        expected = popped.next_offset
        begin = min((delivery.open_offsets[0] for delivery in deliveries), default=expected)
        name, created = source.topic.config.topic_name, source.topic.created_position
        for delivery in deliveries:
            row = PopRow(name, created, source.queue_id, expected, begin, (), delivery.pop_time_ms)
            choice.batches.append(QueueBatch(source, row, ()))
            expected = begin
        return expected

    @staticmethod
    def _add(choice: Choice, batch: QueueBatch) -> None:
        choice.batches.append(batch)
        choice.messages += len(batch.records)
        choice.size += sum(map(len, batch.records))

    def _read(self, choice: Choice, plan: ReadPlan, read: Read | None, *, reads_on: int) -> ReadRecords | None:
        """Read what is wanted. Return None if that needs the disk.

        A pop in order reads on. Without that:

        1. A pop gets one message, and two more lie behind it in memory.
        2. Nobody gets these two before the first message is done with.
        """
        result = self._reads.read_now(plan, read)
        if result is None:
            choice.cold.append(plan)
            return None
        for _ in range(reads_on):
            messages = plan.max_messages - len(result.records)
            size = plan.max_bytes - sum(map(len, result.records))
            if messages <= 0 or size <= 0 or not plan.start < result.next_offset < plan.queue.next_offset:
                break
            begin = result.next_offset
            following = self._reads.read_now(plan._replace(start=begin, max_messages=messages, max_bytes=size))
            if following is None:
                break
            result = ReadRecords(following.next_offset, result.records + following.records)
        return result
