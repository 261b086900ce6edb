"""Truth about popped messages, computed from the log independently of the code under test, and the answers to clients.

- A message is skipped only if its consumers do not want it, or a trim has taken it.
- Each acknowledgement in the log was requested by a consumer. Each answered acknowledgement is in the log.
- A redelivered message was delivered before and not acknowledged. Its copy is in the entry that ends the delivery.
- Pops show exactly the messages that they took.
- A message under a lease is redelivered no earlier than the lease runs out by the last renewal in the log.
- No lease begins before its client has the messages, if the client confirms what it has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from dledger_broker.features.confirmations.commands import ConfirmLease
from dledger_broker.features.leases.commands import LeasedPop, RenewLeases
from dledger_broker.features.pop.commands import NO_ROW, Ack, AckRow, Pop, PopRow, ResetPop, Revive, ReviveRow
from dledger_remoting.topics import DLQ_PREFIX
from dledger_sim.brokers.expected import Incarnation, OffsetKey
from dledger_sim.log.invariants import require

OPEN: Final = "open"
ACKED: Final = "acked"
CLOSED: Final = "closed"
Seen: TypeAlias = Pop | Ack | Revive | ResetPop | LeasedPop | RenewLeases | ConfirmLease
"""Command about popped messages."""


class _Queue:
    """Queue as a group pops it: the deliveries by pop time, each with the state of its messages."""

    def __init__(self, created: int, next_offset: int) -> None:
        self.created = created
        self.next_offset = next_offset
        self.last_pop_ms = 0
        self.deliveries: dict[int, dict[int, str]] = {}

    @property
    def lowest_open(self) -> int:
        states = (messages.items() for messages in self.deliveries.values())
        return min((offset for each in states for offset, state in each if state == OPEN), default=self.next_offset)

    def settle(self, pop_time_ms: int, offsets: Iterable[int], state: str) -> None:
        messages = self.deliveries[pop_time_ms]
        for offset in offsets:
            if messages[offset] == OPEN:
                messages[offset] = state
        if OPEN not in messages.values():
            del self.deliveries[pop_time_ms]


class PopTruth:
    """Judge of every command about popped messages, in the order of the log.

    `topics` are the existing topics. `committed` returns the offset of a group that never popped a queue. `put_offset`
    is called with the committed offset of a group that pops. `codes` are the tag codes that a group's consumers want; a
    group without an entry wants all messages.
    """

    def __init__(
        self,
        happened: Counter[str],
        topics: Mapping[str, Incarnation],
        group_exists: Callable[[str], bool],
        committed: Callable[[OffsetKey], int],
        put_offset: Callable[[OffsetKey, int], None],
    ) -> None:
        self.codes: dict[str, frozenset[int]] = {}
        self.taken: set[tuple[OffsetKey, int, int]] = set()
        """Every message that a pop took, as (queue, pop time, offset)."""
        self.acked: set[tuple[OffsetKey, int, int]] = set()
        """Acknowledged messages, in the same form."""
        self.ack_asked: set[tuple[OffsetKey, int, int]] = set()
        """Messages that a consumer asked to acknowledge, in the same form."""
        self.confirm_asked: set[tuple[OffsetKey, int]] = set()
        """Deliveries whose client asked to lease them because it has the messages, as (queue, pop time)."""
        self.confirming: set[str] = set()
        """Clients that ask for no lease before they have the messages."""
        self.begun_anew: set[tuple[str, int]] = set()
        """Messages that a group was shown and gets again, even if acknowledged, as (group, operation).

        Their topic did not have their queue for a while, and the group continues there at its lowest open message.
        """
        self._leases: dict[str, int] = {}
        """Time at which the lease of each client runs out, by the log."""
        self._leased: dict[tuple[OffsetKey, int], str] = {}
        """Client of each delivery under a lease."""
        self._latest_ms = 0.0
        self._happened = happened
        self._topics = topics
        self._group_exists = group_exists
        self._committed = committed
        self._put_offset = put_offset
        self._queues: dict[OffsetKey, _Queue] = {}
        self._delivered: dict[tuple[OffsetKey, int], tuple[int, ...]] = {}
        """Offsets of all deliveries, including ended deliveries."""
        self._copies: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._popped: defaultdict[tuple[OffsetKey, int], list[int]] = defaultdict(list)
        """Pop times at which pops took each message; hiding a message again adds none."""

    def governs(self, key: OffsetKey) -> bool:
        """Return whether the committed offset of a group in a queue follows from its acknowledgements."""
        return key in self._queues

    def open_messages(self, but_of: str) -> list[tuple[OffsetKey, int]]:
        """Return queue and pop time of all open deliveries, except those of one group."""
        return [
            (key, pop_time_ms)
            for key, queue in self._queues.items()
            if key[0] != but_of
            for pop_time_ms in queue.deliveries
        ]

    def times_popped(self, key: OffsetKey, offset: int, before_ms: int) -> int:
        """Return how many pops took a message before this pop time."""
        return sum(pop_time_ms < before_ms for pop_time_ms in self._popped[key, offset])

    def is_gone(self, key: OffsetKey, offset: int) -> bool:
        """Return whether a trim has taken a message, which ended its delivery."""
        return key[1] not in self._topics or offset < self._get_first_kept(key[1], key[2])

    def came_from_below(self, key: OffsetKey, offset: int, after_ms: int, until_ms: int) -> bool:
        """Return whether a queue was read again, between two pops, from below a message.

        In order that undoes the acknowledgement.
        """
        return any(
            place == key and after_ms < pop_time_ms <= until_ms and offsets[0] < offset
            for (place, pop_time_ms), offsets in self._delivered.items()
        )

    # ---------------------------------------------------------------- the log

    def begin_entry(self) -> None:
        """Begin a new entry."""
        self._copies.clear()

    def see_copy(self, topic: str, operation: int) -> None:
        """Note that the entry has a message in a retry topic or a dead-letter topic."""
        self._copies[topic][operation] += 1

    def see(self, command: Seen, latest_ms: float) -> None:
        """Handle a command of the entry, which was applied at this time by the clock of any leader at the latest."""
        self._latest_ms = latest_ms
        match command:
            case LeasedPop(pop=leased, client=client):
                require(client not in self.confirming, "no lease begins before its client has it", client=client)
                self._forget_lease_without_messages(client)
                self.see(leased, latest_ms)
                self._lease(leased, client)
            case ConfirmLease():
                self._see_confirmation(command)
            case RenewLeases(rows=renewals):
                for client, until_ms, length_ms in renewals:
                    self._forget_lease_without_messages(client)
                    if client not in self._leases:
                        continue
                    before_ms = self._leases[client] if length_ms else 0
                    self._leases[client] = max(before_ms, until_ms)
                    self._happened["lease renewed" if length_ms else "lease ended by its client"] += 1
            case Pop(group=group, rows=pops):
                for pop in pops:
                    if self._group_exists(group):
                        self._see_pop(command, pop)
            case Ack(rows=acks):
                for ack in acks:
                    self._see_ack(ack)
            case Revive(rows=revivals):
                for revival in revivals:
                    self._see_revival(revival)
            case ResetPop(group=group, topic=topic, queue_id=queue_id, created_position=created, offset=offset):
                queue = self._queues.get((group, topic, queue_id))
                if queue is not None and queue.created == created:
                    queue.deliveries.clear()
                    queue.next_offset = max(offset, self._get_first_kept(topic, queue_id))
                    self._put_offset((group, topic, queue_id), queue.next_offset)

    def _forget_lease_without_messages(self, client: str) -> None:
        """Forget a lease that has ended with its last message. The client's next lease begins anew."""
        self._leased = {
            (key, pop_time_ms): owner
            for (key, pop_time_ms), owner in self._leased.items()
            if key in self._queues and pop_time_ms in self._queues[key].deliveries
        }
        if client not in self._leased.values():
            self._leases.pop(client, None)

    def _lease(self, pop: Pop, client: str) -> None:
        """Note the deliveries of a pop under a lease. A pop without messages does not change the lease."""
        for row in pop.rows:
            key = (pop.group, row.topic, row.queue_id)
            queue = self._queues.get(key)
            if queue is not None and row.offsets and pop.pop_time_ms in queue.deliveries:
                self._leased[key, pop.pop_time_ms] = client
                self._leases[client] = max(self._leases.get(client, 0), pop.pop_time_ms + pop.invisible_ms)
                self._happened["delivery leased"] += 1

    def _see_confirmation(self, command: ConfirmLease) -> None:
        """Note the deliveries that a client has. Those that are over or leased stay as they are."""
        self._forget_lease_without_messages(command.client)
        for topic, created, queue_id, pop_time_ms in command.rows:
            key = (command.group, topic, queue_id)
            queue, name = self._queues.get(key), (key, pop_time_ms)
            require(name in self.confirm_asked, "a consumer confirmed a delivery", delivery=name)
            if queue is None or queue.created != created or pop_time_ms not in queue.deliveries or name in self._leased:
                continue
            self._leased[name] = command.client
            self._leases[command.client] = max(self._leases.get(command.client, 0), command.until_ms)
            self._happened["delivery leased when confirmed"] += 1

    def _require_lease_over(self, key: OffsetKey, pop_time_ms: int) -> None:
        """Check that messages under a lease are delivered again only when the lease has run out."""
        client = self._leased.get((key, pop_time_ms))
        if client is None:
            return
        self._happened["leased message came again"] += 1
        until_ms, at_ms = self._leases[client], self._latest_ms
        require(until_ms <= at_ms, "a leased message comes again once its lease is over", key=key, until_ms=until_ms)

    def _get_first_kept(self, topic: str, queue_id: int) -> int:
        return self._topics[topic].first_offsets.get(queue_id, 0)

    def _see_pop(self, command: Pop, row: PopRow) -> None:
        key = (command.group, row.topic, row.queue_id)
        incarnation, queue = self._topics.get(row.topic), self._queues.get(key)
        if incarnation is None or incarnation.created != row.created_position:
            return
        kept = self._get_first_kept(row.topic, row.queue_id)
        if (NO_ROW if queue is None else queue.next_offset) != row.expected or row.next_offset < kept:
            return
        if row.offsets and (row.offsets[0] < kept or (queue is not None and command.pop_time_ms <= queue.last_pop_ms)):
            return
        begin = row.expected
        if queue is None:
            queue = self._queues[key] = _Queue(row.created_position, row.next_offset)
            begin = self._committed(key)
        if row.again and row.again not in queue.deliveries:
            return
        if row.again and row.offsets:
            begin = queue.lowest_open
        if row.offsets or not row.again:
            self._require_wanted(key, incarnation, range(begin, row.next_offset), row.offsets)
            require(
                not (command.is_ordered and row.offsets and queue.deliveries.keys() - {row.again}),
                "in order, no message is delivered beside an unfinished one",
                key=key,
            )
        if row.again:
            queue.settle(row.again, list(queue.deliveries[row.again]), CLOSED)
        queue.next_offset = row.next_offset
        if row.offsets:
            self._deliver(key, queue, command.pop_time_ms, row.offsets)
            for offset in row.offsets:
                self._popped[key, offset].append(command.pop_time_ms)
            self._happened["message popped"] += len(row.offsets)
        self._put_offset(key, queue.lowest_open)

    def _require_wanted(
        self, key: OffsetKey, incarnation: Incarnation, looked_at: range, delivered: tuple[int, ...]
    ) -> None:
        """Check that skipped messages are unwanted or gone."""
        codes = self.codes.get(key[0])
        stored, kept = incarnation.queues.get(key[2], []), incarnation.first_offsets.get(key[2], 0)
        for offset in looked_at:
            if offset in delivered or offset < kept:
                continue
            wanted = codes is None or stored[offset].tag_code in codes
            require(not wanted, "a pop skips only messages that its group does not want", key=key, offset=offset)

    def _deliver(self, key: OffsetKey, queue: _Queue, pop_time_ms: int, offsets: Iterable[int]) -> None:
        queue.last_pop_ms = pop_time_ms
        queue.deliveries[pop_time_ms] = dict.fromkeys(offsets, OPEN)
        self._delivered[key, pop_time_ms] = tuple(offsets)
        self.taken.update((key, pop_time_ms, offset) for offset in offsets)

    def _see_ack(self, row: AckRow) -> None:
        key, found = self._find_queue(row)
        if found is None:
            return
        offsets = self._get_offsets(found, row)
        if not row.new_pop_time_ms:
            still_open = [offset for offset in offsets if found.deliveries[row.pop_time_ms][offset] == OPEN]
            found.settle(row.pop_time_ms, offsets, ACKED)
            for offset in still_open:
                message = (key, row.pop_time_ms, offset)
                require(message in self.ack_asked, "a consumer asked for an acknowledgement", message=message)
                self.acked.add(message)
                self._happened["popped message acknowledged"] += 1
        elif found.deliveries[row.pop_time_ms][offsets[0]] == OPEN and row.new_pop_time_ms > found.last_pop_ms:
            found.settle(row.pop_time_ms, offsets, CLOSED)
            self._deliver(key, found, row.new_pop_time_ms, offsets)
            self._happened["popped message hidden anew"] += 1
        self._put_offset(key, found.lowest_open)

    def _see_revival(self, row: ReviveRow) -> None:
        key, found = self._find_queue(row)
        delivered = self._delivered.get((key, row.pop_time_ms), ())
        again = [offset for number, offset in enumerate(delivered) if row.bits >> number & 1]
        acked = [offset for offset in again if (key, row.pop_time_ms, offset) in self.acked]
        require(not acked, "an acknowledged message is not delivered again", key=key, offsets=acked)
        if found is None:
            return
        self._require_lease_over(key, row.pop_time_ms)
        offsets = self._get_offsets(found, row)
        stored, kept = self._topics[row.topic].queues[row.queue_id], self._get_first_kept(row.topic, row.queue_id)
        for offset in offsets:
            state = found.deliveries[row.pop_time_ms][offset]
            require(
                state == OPEN or offset < kept,  # a trim overtook the revival: the copy outlives the message
                "a redelivered message was unfinished",
                key=key,
                offset=offset,
                state=state,
            )
            operation = stored[offset].operation
            copies = [topic for topic, operations in self._copies.items() if operations[operation]]
            require(bool(copies), "a redelivered message has a copy", key=key, offset=offset, operation=operation)
            self._copies[copies[0]][operation] -= 1
            is_dead = copies[0].startswith(DLQ_PREFIX)
            self._happened["popped message dead" if is_dead else "popped message came again"] += 1
        found.settle(row.pop_time_ms, offsets, CLOSED)
        self._put_offset(key, found.lowest_open)

    def _find_queue(self, row: AckRow | ReviveRow) -> tuple[OffsetKey, _Queue | None]:
        key = (row.group, row.topic, row.queue_id)
        queue = self._queues.get(key)
        is_there = queue is not None and queue.created == row.created_position and row.pop_time_ms in queue.deliveries
        return key, queue if is_there else None

    @staticmethod
    def _get_offsets(queue: _Queue, row: AckRow | ReviveRow) -> list[int]:
        return [offset for number, offset in enumerate(queue.deliveries[row.pop_time_ms]) if row.bits >> number & 1]

    # ---------------------------------------------------------------- trims and changes of topics

    def see_trim(self, topic: str, queue_id: int, first_offset: int) -> None:
        """Note that the messages of a queue below an offset are gone."""
        for key, queue in self._queues.items():
            if key[1:] != (topic, queue_id) or queue.lowest_open >= first_offset:
                continue
            for pop_time_ms, messages in list(queue.deliveries.items()):
                queue.settle(pop_time_ms, [offset for offset in messages if offset < first_offset], CLOSED)
            queue.next_offset = max(queue.next_offset, first_offset)
            self._put_offset(key, queue.lowest_open)

    def see_queues(self, topic: str, count: int) -> None:
        """Note the number of readable queues of a topic."""
        for key, queue in self._queues.items():
            if key[1] == topic and key[2] >= count and queue.deliveries:
                stored = self._topics[topic].queues[key[2]]
                again = range(queue.lowest_open, queue.next_offset)
                self.begun_anew.update((key[0], stored[offset].operation) for offset in again)
                queue.next_offset = queue.lowest_open
                queue.deliveries.clear()

    def forget(self, gone: Callable[[OffsetKey], bool]) -> None:
        """Drop the queues of a topic or a group that is gone."""
        for key in [key for key in self._queues if gone(key)]:
            del self._queues[key]
