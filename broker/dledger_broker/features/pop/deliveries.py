"""Deliveries of one queue to a group that pops it: the messages that members have, and until when.

A message is open from its delivery until it is acknowledged or closed. It is closed to be delivered again: revived, or
hidden anew as a delivery of its own. A delivery is forgotten with its last open message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from dledger_base.invariants import invariant
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.kernel.digest import MASK, item_hash

_SPARE: Final = 1_024
"""Number by which stale entries of the heap must exceed the open messages before the heap is rebuilt."""

DeliveryRow: TypeAlias = tuple[int, tuple[int, ...], int, int, int, int, bool, str]
"""Delivery in a snapshot: pop time, offsets, acked and closed bits, invisible time, attempt, in order, attempt id."""


class Delivery:
    """Messages that were popped together from one queue.

    `acked` and `closed` have a bit for each message, the lowest bit for the first message.

    `attempt` is 1 at the first ordered delivery. `applied_at` is a time of this replica's event loop, set in the turn
    that applies the delivery. It is not part of the replicated state. `client` is the owner of the lease under which
    the messages stay hidden, or "".
    """

    __slots__ = (
        "acked",
        "applied_at",
        "attempt",
        "attempt_id",
        "client",
        "closed",
        "invisible_ms",
        "is_ordered",
        "offsets",
        "pop_time_ms",
    )

    def __init__(
        self,
        pop_time_ms: int,
        offsets: Sequence[int],
        acked: int,
        closed: int,
        invisible_ms: int,
        attempt: int = 1,
        is_ordered: bool = False,
        attempt_id: str = "",
        client: str = "",
    ) -> None:
        self.pop_time_ms = pop_time_ms
        self.offsets = tuple(offsets)
        self.acked = acked
        self.closed = closed
        self.invisible_ms = invisible_ms
        self.attempt = attempt
        self.is_ordered = is_ordered
        self.attempt_id = attempt_id
        self.client = client
        self.applied_at = 0.0

    @property
    def row(self) -> DeliveryRow:
        """The delivery as stored in a snapshot."""
        return (
            *(self.pop_time_ms, self.offsets, self.acked, self.closed),
            *(self.invisible_ms, self.attempt, self.is_ordered, self.attempt_id),
        )

    @property
    def due_ms(self) -> int:
        """Group time from which on the open messages are to be delivered again."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def open_bits(self) -> int:
        """Bits of the messages that are neither acknowledged nor closed."""
        return ((1 << len(self.offsets)) - 1) & ~(self.acked | self.closed)

    @property
    def open_offsets(self) -> list[int]:
        """Offsets of the open messages, ascending."""
        return offsets_of(self.offsets, self.open_bits)

    def bit_of(self, offset: int) -> int:
        """Return the bit of a message, or 0 if the message is not in this delivery."""
        try:
            return 1 << self.offsets.index(offset)
        except ValueError:
            return 0


def offsets_of(offsets: Sequence[int], bits: int) -> list[int]:
    """Return the offsets of the set bits."""
    return [offset for number, offset in enumerate(offsets) if bits >> number & 1]


class PopQueue:
    """All deliveries of a queue to a group. `digest` is the queue's share of the table's digest."""

    __slots__ = (
        "_hashed",
        "_head",
        "_open",
        "_sum",
        "created_position",
        "deliveries",
        "key",
        "last_pop_ms",
        "next_offset",
        "open_count",
    )

    def __init__(self, key: PopQueueKey, created_position: int, next_offset: int, last_pop_ms: int = 0) -> None:
        self.key = key
        self.created_position = created_position
        self.next_offset = next_offset
        self.last_pop_ms = last_pop_ms
        self.deliveries: dict[int, Delivery] = {}
        self.open_count = 0
        self._open: list[tuple[int, int]] = []
        self._sum = 0
        self._head = 0
        self._hashed = (-1, -1)
        """Values from which `_head` was hashed."""

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries.values())

    @property
    def digest(self) -> int:
        """Digest of the queue, independent of the order of the deliveries."""
        facts = (self.next_offset, self.last_pop_ms)
        if facts != self._hashed:
            self._hashed = facts
            self._head = item_hash("pop-queue", *self.key, self.created_position, *facts)
        return (self._head + self._sum) & MASK

    @property
    def lowest_open(self) -> int:
        """Offset of the lowest open message, or `next_offset` if none is open. It is the group's committed offset."""
        heap = self._open
        while heap:
            offset, pop_time_ms = heap[0]
            delivery = self.deliveries.get(pop_time_ms)
            if delivery is not None and delivery.bit_of(offset) & delivery.open_bits:
                return offset
            heapq.heappop(heap)
        return self.next_offset

    @property
    def lowest_delivery(self) -> Delivery | None:
        """Delivery of the lowest open message, or None."""
        lowest = self.lowest_open
        return self.deliveries[self._open[0][1]] if self._open and self._open[0][0] == lowest else None

    def add(self, delivery: Delivery) -> None:
        """Add a new delivery, which has the highest pop time."""
        invariant(delivery.pop_time_ms > self.last_pop_ms, "pop times of a queue ascend", queue=self.key)
        self.last_pop_ms = delivery.pop_time_ms
        self.restore(delivery)

    def restore(self, delivery: Delivery) -> None:
        """Add a delivery from a snapshot."""
        self.deliveries[delivery.pop_time_ms] = delivery
        self.open_count += delivery.open_bits.bit_count()
        self._sum += self._hash(delivery)
        for offset in delivery.open_offsets:
            heapq.heappush(self._open, (offset, delivery.pop_time_ms))

    def settle(self, delivery: Delivery, *, acked: int = 0, closed: int = 0) -> None:
        """Mark messages of a delivery as acknowledged or closed. Messages that are not open stay as they are."""
        before = delivery.open_bits
        self._sum -= self._hash(delivery)
        delivery.acked |= acked & before
        delivery.closed |= closed & before
        self.open_count -= before.bit_count() - delivery.open_bits.bit_count()
        if delivery.open_bits:
            self._sum += self._hash(delivery)
        else:
            del self.deliveries[delivery.pop_time_ms]
        if len(self._open) > 2 * self.open_count + _SPARE:
            self._open = [(offset, each.pop_time_ms) for each in self for offset in each.open_offsets]
            heapq.heapify(self._open)

    def lease(self, delivery: Delivery, client: str) -> None:
        """Hide the messages of a delivery under the lease of a client."""
        self._sum -= self._hash(delivery)
        delivery.client = client
        self._sum += self._hash(delivery)

    def end_all(self) -> int:
        """Forget all deliveries, and return how many of their messages were open."""
        ended = self.open_count
        self.deliveries.clear()
        self._open.clear()
        self.open_count = self._sum = 0
        return ended

    def _hash(self, delivery: Delivery) -> int:
        lease = (delivery.client,) if delivery.client else ()
        return item_hash("delivery", *self.key, *delivery.row, *lease)
