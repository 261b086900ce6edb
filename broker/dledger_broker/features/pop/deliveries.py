"""Deliveries of one queue to a group that pops it: which messages its members have, and until when.

A message is open from its delivery until it is acknowledged, or closed because it is to be delivered again: revived, or
hidden anew as a delivery of its own. A delivery is forgotten with its last open message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from dledger.invariants import invariant
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.kernel.digest import MASK, item_hash

_SPARE: Final = 1_024
"""Open messages are listed anew once those that are listed and open no more outnumber them by so many."""

DeliveryRow: TypeAlias = tuple[int, tuple[int, ...], int, int, int, int, bool, str]
"""A delivery in a snapshot: pop time, offsets, acked and closed bits, invisible time, attempt, in order, attempt id."""


class Delivery:
    """Messages that were popped together from one queue; the bits count them from the lowest on.

    `attempt` is 1 at the first delivery in order. `applied_at` is a time of this replica's event loop, and counts
    nowhere in the state; it is set in the turn that applies the delivery.
    """

    __slots__ = (
        "acked",
        "applied_at",
        "attempt",
        "attempt_id",
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
    ) -> None:
        self.pop_time_ms = pop_time_ms
        self.offsets = tuple(offsets)
        self.acked = acked
        self.closed = closed
        self.invisible_ms = invisible_ms
        self.attempt = attempt
        self.is_ordered = is_ordered
        self.attempt_id = attempt_id
        self.applied_at = 0.0

    @property
    def row(self) -> DeliveryRow:
        """As a snapshot has it."""
        return (
            *(self.pop_time_ms, self.offsets, self.acked, self.closed),
            *(self.invisible_ms, self.attempt, self.is_ordered, self.attempt_id),
        )

    @property
    def due_ms(self) -> int:
        """The group time from which on its open messages are to be delivered again."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def open_bits(self) -> int:
        """Messages that are neither acknowledged nor closed."""
        return ((1 << len(self.offsets)) - 1) & ~(self.acked | self.closed)

    @property
    def open_offsets(self) -> list[int]:
        """Their offsets, ascending."""
        return offsets_of(self.offsets, self.open_bits)

    def bit_of(self, offset: int) -> int:
        """The bit of a message; 0 if it is not among them."""
        try:
            return 1 << self.offsets.index(offset)
        except ValueError:
            return 0


def offsets_of(offsets: Sequence[int], bits: int) -> list[int]:
    """The offsets that bits stand for."""
    return [offset for number, offset in enumerate(offsets) if bits >> number & 1]


class PopQueue:
    """All deliveries of a queue to a group. `digest` is its share of the table's."""

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
        """What `_head` is the hash of."""

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries.values())

    @property
    def digest(self) -> int:
        """Order-independent."""
        facts = (self.next_offset, self.last_pop_ms)
        if facts != self._hashed:
            self._hashed = facts
            self._head = item_hash("pop-queue", *self.key, self.created_position, *facts)
        return (self._head + self._sum) & MASK

    @property
    def lowest_open(self) -> int:
        """The lowest offset that is not done with: what the group has committed."""
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
        """The delivery that the lowest open message belongs to."""
        lowest = self.lowest_open
        return self.deliveries[self._open[0][1]] if self._open and self._open[0][0] == lowest else None

    def add(self, delivery: Delivery) -> None:
        """One more, with the highest pop time."""
        invariant(delivery.pop_time_ms > self.last_pop_ms, "pop times of a queue ascend", queue=self.key)
        self.last_pop_ms = delivery.pop_time_ms
        self.restore(delivery)

    def restore(self, delivery: Delivery) -> None:
        """One that a snapshot has."""
        self.deliveries[delivery.pop_time_ms] = delivery
        self.open_count += delivery.open_bits.bit_count()
        self._sum += self._hash(delivery)
        for offset in delivery.open_offsets:
            heapq.heappush(self._open, (offset, delivery.pop_time_ms))

    def settle(self, delivery: Delivery, *, acked: int = 0, closed: int = 0) -> None:
        """Messages of a delivery are acknowledged, or closed; those that were not open stay what they are."""
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

    def end_all(self) -> int:
        """Forget all deliveries; returns how many of their messages were open."""
        ended = self.open_count
        self.deliveries.clear()
        self._open.clear()
        self.open_count = self._sum = 0
        return ended

    def _hash(self, delivery: Delivery) -> int:
        return item_hash("delivery", *self.key, *delivery.row)
