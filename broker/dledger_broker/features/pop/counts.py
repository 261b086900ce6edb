"""Counts of earlier deliveries of each message, for answers to ordered pops.

RocketMQ adds one to the count of a message if the previous pop of the queue gave the message as well. For example, m1
is redelivered, m2 was given with m1 and acknowledged, and m3 is new: their counts are 1, 1 and 0.

A leader remembers the counts of its own pops, as RocketMQ's broker does. It does not know the counts of an earlier
leader. Then each message that was given before counts as given once, so no count is too high. The attempts of
a delivery are too many for a message that was hidden anew: it keeps those of the message before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.commands import PopQueueKey

FEW_QUEUES: Final = 1_024
"""Minimum number of remembered queues. With more, queues without an open delivery are forgotten."""


class OrderedCounts:
    """Counts of the messages of the last ordered pop of each queue, as this leader remembers them."""

    def __init__(self, changes: PopChanges) -> None:
        self._changes = changes
        self._last_counts: dict[PopQueueKey, dict[int, int]] = {}
        self._forget_at = FEW_QUEUES

    def of(self, key: PopQueueKey, offsets: Sequence[int], new_from: int, *, is_same: bool) -> tuple[int, ...]:
        """Return the counts of messages that are redelivered from the lowest open message on.

        Messages from `new_from` on were never given. `is_same` is true for a repetition of the previous pop, which
        counts as no delivery.
        """
        if not offsets:
            return ()
        last, counted = self._last_counts.get(key, {}), int(not is_same)
        return tuple(last.get(offset, 0) + counted if offset < new_from else 0 for offset in offsets)

    def note(self, key: PopQueueKey, offsets: Sequence[int], counts: Sequence[int]) -> None:
        """Remember the messages of a pop. Without counts, all of them were given for the first time."""
        if not counts:
            self._last_counts.pop(key, None)
            return
        self._last_counts[key] = dict(zip(offsets, counts, strict=True))
        if len(self._last_counts) >= self._forget_at:
            self._forget_finished()

    def _forget_finished(self) -> None:
        table = self._changes.table
        self._last_counts = {
            key: counts
            for key, counts in self._last_counts.items()
            if (queue := table.queue(key)) is not None and queue.deliveries
        }
        self._forget_at = max(FEW_QUEUES, 2 * len(self._last_counts))

    def forget_all(self) -> None:
        """Forget all counts, because another node may lead."""
        self._last_counts.clear()
        self._forget_at = FEW_QUEUES
