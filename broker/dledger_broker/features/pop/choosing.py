"""Choice of messages for a pop: which queues it looks at, and what it takes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.changes import MAX_ROWS, PopChanges
from dledger_broker.features.pop.commands import NO_ROW, PopQueueKey, PopRow
from dledger_broker.features.pop.deliveries import Delivery, PopQueue
from dledger_broker.features.pop.reading import Found, PopReads, Read, Wanted, offset_of, runs_of
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.pop import Retry, pop_retry_topic

FROM_START: Final = 0
"""`init_mode` of a group that begins at the first kept message of a queue."""
RETRIES_FIRST: Final = 5
"""Each so many pops look for what is delivered again before they look for what is new."""


class PopAsk(NamedTuple):
    """What a pop wants."""

    group: str
    topic: str
    queue_id: int
    """-1: any."""
    max_messages: int
    max_bytes: int
    message_filter: MessageFilter | None
    init_mode: int
    is_ordered: bool
    attempt_id: str
    reads_v1: bool = True
    """Whether what comes again under the older name may be looked at, which other groups may have, too."""


class Source(NamedTuple):
    """A queue that a pop looks at."""

    retry: Retry
    topic: TopicState
    queue_id: int


class Taken(NamedTuple):
    """What is taken of one queue: the row that says so, and the records, one after another."""

    source: Source
    row: PopRow
    records: tuple[bytes, ...]
    attempt: int


class Choice:
    """What a pop has chosen; `is_full` tells that a queue was passed over because too much of it is open.

    `rest` is how many messages are left in the queues that were looked at.
    """

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.cold: list[Wanted] = []
        """What was not read because that needs the disk."""
        self.messages = self.size = self.rest = 0
        self.is_full = False


class Chooser:
    """Chooses on the leader, in the turn that proposes the pop, of `MAX_ROWS` queues at most; no more than
    `max_pop_in_flight` of a queue are open.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        reads: PopReads,
        changes: PopChanges,
        live: LiveConfig,
        is_due: Callable[[Delivery], bool],
    ) -> None:
        self._machine = machine
        self._changes = changes
        self._live = live
        self._is_due = is_due
        self._reads = reads
        self._pops = 0
        self._begin = 0
        """The queue that the next look at a topic begins with, modulo its queues."""

    def choose(self, ask: PopAsk, read: Read | None = None, *, is_question: bool = False) -> Choice:
        """What a pop gets; `read` is what was read for it before. A question proposes nothing: it has no limit."""
        choice = Choice()
        for looked_at, source in enumerate(self._sources(ask)):
            if len(choice.taken) >= MAX_ROWS and not is_question:
                # 1. A group pops 20,000 empty queues for the first time. 2. Each gets a row. 3. No segment holds them
                # all. What is left is looked at once these are applied, from where this ends.
                self._begin += looked_at - 1
                break
            if choice.messages >= ask.max_messages or choice.size >= ask.max_bytes:
                choice.rest += self._left(ask, source)
            elif ask.is_ordered:
                self._take_in_order(choice, ask, source, read)
            else:
                self._take_next(choice, ask, source, read)
        return choice

    def has_some(self, ask: PopAsk) -> bool:
        """Whether a pop would find something, as far as that is known without reading."""
        for source in self._sources(ask):
            key = PopQueueKey(ask.group, source.topic.config.topic_name, source.queue_id)
            popped = self._changes.table.queue(key)
            delivery = popped.lowest_delivery if ask.is_ordered and popped is not None else None
            if popped is not None and delivery is not None:
                if delivery.is_ordered and self._may_come_again(ask, popped, delivery):
                    return True
            elif self._left(ask, source):
                return True
        return False

    def start_of(self, ask: PopAsk, source: Source) -> int:
        """Where a pop of a queue begins."""
        key = PopQueueKey(ask.group, source.topic.config.topic_name, source.queue_id)
        queue = source.topic.queue(source.queue_id)
        start = self._changes.next_offset(key)
        if start == NO_ROW:
            committed = self._machine.state.table(OFFSETS).get(*key)
            if committed is not None and committed >= 0:
                start = min(committed, queue.next_offset)
            elif ask.init_mode == FROM_START or source.retry is not Retry.NONE or not queue.first_offset:
                start = queue.first_offset  # a young topic begins at its start, as it does for pulls
            else:
                start = queue.next_offset
        return max(start, queue.first_offset)

    # ---------------------------------------------------------------- queues

    def _sources(self, ask: PopAsk) -> Iterator[Source]:
        """The queues to look at, in an order that gives each its turn."""
        self._pops += 1
        self._begin += 1
        normal = self._queues_of(ask, Retry.NONE)
        if ask.is_ordered:
            yield from normal
            return
        retries = (Retry.V1, Retry.V2) if ask.reads_v1 else (Retry.V2,)
        again = [source for retry in retries for source in self._queues_of(ask, retry)]
        yield from chain(again, normal) if self._pops % RETRIES_FIRST == 0 else chain(normal, again)

    def _queues_of(self, ask: PopAsk, retry: Retry) -> Iterator[Source]:
        topic = self._machine.topic(pop_retry_topic(ask.group, ask.topic, retry))
        if topic is None:
            return
        count = topic.config.read_queue_nums
        if retry is Retry.NONE and ask.queue_id >= 0:
            yield Source(retry, topic, ask.queue_id)
            return
        begin = self._begin
        for number in range(count):
            yield Source(retry, topic, (number + begin) % count)

    def _left(self, ask: PopAsk, source: Source) -> int:
        return max(0, source.topic.queue(source.queue_id).next_offset - self.start_of(ask, source))

    # ---------------------------------------------------------------- messages

    def _take_next(self, choice: Choice, ask: PopAsk, source: Source, read: Read | None) -> None:
        """Take what follows in a queue."""
        name = source.topic.config.topic_name
        key = PopQueueKey(ask.group, name, source.queue_id)
        queue, start = source.topic.queue(source.queue_id), self.start_of(ask, source)
        expected = self._changes.next_offset(key)
        max_open = self._live.config.max_pop_in_flight
        wanted = min(ask.max_messages - choice.messages, max_open - self._changes.open_count(key))
        if start >= queue.next_offset:
            if expected == NO_ROW:
                # What comes from now on is the group's, however it asks next time.
                row = PopRow(name, source.topic.created_position, source.queue_id, expected, start)
                choice.taken.append(Taken(source, row, (), 1))
            return
        if wanted <= 0:
            choice.is_full = True
            choice.rest += queue.next_offset - start
            return
        max_bytes = ask.max_bytes - choice.size
        found = self._read(choice, Wanted(queue, start, wanted, max_bytes, ask.message_filter), read)
        if found is None:
            return
        next_offset, records = found
        if next_offset == start:
            return
        offsets = tuple(map(offset_of, records))
        row = PopRow(name, source.topic.created_position, source.queue_id, expected, next_offset, offsets)
        choice.rest += max(0, queue.next_offset - next_offset)
        self._add(choice, Taken(source, row, records, 1))

    def _take_in_order(self, choice: Choice, ask: PopAsk, source: Source, read: Read | None) -> None:
        """Take what follows, unless the group has something of the queue: then that, once it is to come again."""
        name = source.topic.config.topic_name
        key = PopQueueKey(ask.group, name, source.queue_id)
        if self._changes.is_popping(key):
            return
        popped = self._changes.table.queue(key)
        delivery = None if popped is None else popped.lowest_delivery
        if popped is None or delivery is None:
            self._take_next(choice, ask, source, read)
        elif delivery.is_ordered and self._may_come_again(ask, popped, delivery):
            self._take_again(choice, ask, source, popped, delivery, read)

    def _may_come_again(self, ask: PopAsk, popped: PopQueue, delivery: Delivery) -> bool:
        if not self._changes.is_free(popped, delivery):
            return False
        return self._is_due(delivery) or bool(ask.attempt_id and ask.attempt_id == delivery.attempt_id)

    def _take_again(
        self, choice: Choice, ask: PopAsk, source: Source, popped: PopQueue, delivery: Delivery, read: Read | None
    ) -> None:
        """Take the open messages of a delivery again, however many the pop asks for: they keep their order."""
        offsets, queue = delivery.open_offsets, source.topic.queue(source.queue_id)
        records: list[bytes] = []
        for first, count in runs_of(offsets):
            found = self._read(choice, Wanted(queue, first, count), read)
            if found is None or len(found.records) < count:
                return
            records += found.records
        row = PopRow(
            source.topic.config.topic_name,
            source.topic.created_position,
            source.queue_id,
            popped.next_offset,
            popped.next_offset,
            tuple(offsets),
            delivery.pop_time_ms,
        )
        is_same = bool(ask.attempt_id) and ask.attempt_id == delivery.attempt_id
        self._add(choice, Taken(source, row, tuple(records), delivery.attempt + (not is_same)))

    @staticmethod
    def _add(choice: Choice, taken: Taken) -> None:
        choice.taken.append(taken)
        choice.messages += len(taken.records)
        choice.size += sum(map(len, taken.records))

    def _read(self, choice: Choice, wanted: Wanted, read: Read | None) -> Found | None:
        found = self._reads.now(wanted, read)
        if found is None:
            choice.cold.append(wanted)
        return found
