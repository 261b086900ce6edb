"""Truth about resets: the offsets to which the log resets groups, and which commits count after a reset.

A commit counts only if its client has learned where to read after the last reset of the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from dledger_broker.features.resets.table import RESETS, ResetOffsets, SeeReset
from dledger_broker.kernel.state import BrokerState
from dledger_sim.brokers.expected import Expected, Incarnation, OffsetKey
from dledger_sim.brokers.history import History
from dledger_sim.log.invariants import require

GROUPS: Final = ("reset-0", "reset-1")
"""Groups that are reset while their members run."""


class ResetTruth:
    """Judge that follows resets in the log. A reset's number is the index of its entry; 0 means no reset."""

    def __init__(
        self,
        happened: Counter[str],
        topics: Mapping[str, Incarnation],
        expected: Expected,
        put_offset: Callable[[OffsetKey, int], None],
    ) -> None:
        self._happened = happened
        self._topics = topics
        self._expected = expected
        self._put_offset = put_offset
        self.pending: dict[OffsetKey, tuple[int, int]] = {}
        """Resets that no client has seen, as (offset, number)."""
        self.told: Final[defaultdict[OffsetKey, History[int | None]]] = defaultdict(lambda: History(None))
        """Offset that consumers are given; None while no reset is pending."""
        self.done: Final[defaultdict[OffsetKey, list[tuple[int, int]]]] = defaultdict(list)
        """All resets of a queue, as (number, requested offset), newest last."""
        self._resets_by_commit: dict[tuple[OffsetKey, int], int] = {}
        self.watchers: list[Callable[[OffsetKey, int], None]] = []
        """Callbacks for every reset, with the group's next offset. They are called when its entry is first applied."""

    def newest(self, key: OffsetKey) -> int:
        """Return the number of a queue's last reset."""
        return self.done[key][-1][0] if self.done[key] else 0

    def has_reset(self, topic: str, queue_id: int) -> bool:
        """Return whether any group was reset in a queue."""
        return any(resets and key[1:] == (topic, queue_id) for key, resets in self.done.items())

    def attempt(self, key: OffsetKey, offset: int, rests_on: int) -> None:
        """Note that a consumer is about to commit an offset.

        It reached the offset since it learned of the reset `rests_on`.
        """
        self._expected.attempt(("offset", *key, offset))
        self._resets_by_commit[key, offset] = max(rests_on, self._resets_by_commit.get((key, offset), 0))

    # ---------------------------------------------------------------- the log

    def see(self, command: ResetOffsets | SeeReset, index: int, moment: float) -> None:
        """Handle a command: a group is reset, or a consumer has seen the reset."""
        match command:
            case ResetOffsets(group=group, rows=rows):
                for name, created, queue_id, offset in rows:
                    incarnation = self._topics.get(name)
                    if incarnation is not None and incarnation.created == created:
                        key = (group, name, queue_id)
                        kept = max(offset, incarnation.first_offsets.get(queue_id, 0))
                        self._put_offset(key, kept)
                        self._expected.committers[key].put(index, moment, None)
                        self.done[key].append((index, offset))
                        self._set_pending(key, (kept, index), index, moment)
                        self._happened["queue reset"] += 1
                        for watcher in self.watchers:
                            watcher(key, kept)
            case SeeReset(group=group, topic=name, queue_id=queue_id, number=number):
                key = (group, name, queue_id)
                if self.pending.get(key, (0, 0))[1] == number:
                    self._set_pending(key, None, index, moment)
                    self._happened["reset seen"] += 1

    def see_trim(self, name: str, queue_id: int, first: int, index: int, moment: float) -> None:
        """Note a trim of a queue: no consumer may be sent to trimmed messages."""
        for key, (offset, number) in list(self.pending.items()):
            if key[1:] == (name, queue_id) and offset < first:
                self._set_pending(key, (first, number), index, moment)

    def _set_pending(self, key: OffsetKey, pending: tuple[int, int] | None, index: int, moment: float) -> None:
        self.told[key].put(index, moment, None if pending is None else pending[0])
        if pending is None:
            del self.pending[key]
        else:
            self.pending[key] = pending

    def voids(self, key: OffsetKey, offset: int) -> bool:
        """Return whether a commit in the log has no effect.

        A commit with effect must not rest on reads before a reset.
        """
        if key in self.pending:
            self._happened["commit voided by a reset"] += 1
            return True
        if key in self.done:
            require(
                self._resets_by_commit.get((key, offset), 0) >= self.newest(key),
                "no commit of reads before a reset undoes the reset",
                key=key,
                offset=offset,
                resets=self.done[key],
                rests_on=self._resets_by_commit.get((key, offset)),
            )
        return False

    # ---------------------------------------------------------------- replicas

    def compare(self, node: str, index: int, state: BrokerState) -> None:
        """Compare a replica's resets after it has applied the newest entry, at `index`."""
        found = dict(state.table(RESETS).pending)
        require(
            found == self.pending,
            "a reset lasts until a consumer has seen it",
            node=node,
            index=index,
            expected=self.pending,
            found=found,
        )
