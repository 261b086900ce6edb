"""Truth about messages that consumers send back: compares the log with the consumers' requests and their answers.

- A message that is sent back is stored once the request (36) is answered 0. It is stored at most once per request that
  was not refused. A leader that remembers the message makes no second copy.
- A copy either waits for the group's retry topic, or is a dead letter.
- A message is redelivered as often as its copies wait, and only after its delay.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final, NamedTuple

from dledger_remoting.topics import DLQ_PREFIX, RETRY_PREFIX, is_dead_letter_topic, is_retry_topic
from dledger_sim.log.invariants import require

_TIMES: Final = struct.Struct(">i")
_TIMES_AT: Final = 72
"""Offset of the number of deliveries within a record, in bytes."""


class Copy(NamedTuple):
    """Message in the form that is stored when a group sends it back, after `times` deliveries."""

    group: str
    operation: int
    times: int
    is_dead: bool


def copy_in(topic: str, operation: int, times: int) -> Copy | None:
    """Return the copy that a record of a topic is, or will be after its wait.

    Return None for a message of a producer.
    """
    if is_retry_topic(topic):
        return Copy(topic.removeprefix(RETRY_PREFIX), operation, times, is_dead=False)
    if is_dead_letter_topic(topic):
        return Copy(topic.removeprefix(DLQ_PREFIX), operation, times, is_dead=True)
    return None


def copy_at(records: bytes, place: int, topic: str, operation: int) -> Copy | None:
    """Return the copy of the record that begins at a place."""
    return copy_in(topic, operation, _TIMES.unpack_from(records, place + _TIMES_AT)[0])


class SentBackTruth:
    """Judge of every copy in the log, and of every request for a copy and its answer. `happened` counts rare events.

    It ignores groups that have sent no message back: messages that they popped come again too (`pop_truth`).
    """

    def __init__(self, happened: Counter[str]) -> None:
        self.happened = happened
        self._request_counts: Counter[Copy] = Counter()
        self._refusal_counts: Counter[Copy] = Counter()
        self._stored_counts: Counter[Copy] = Counter()
        """Number of copies that wait, have waited, or are dead letters."""
        self._delivery_counts: Counter[Copy] = Counter()
        self._due_times: dict[Copy, float] = {}
        self._groups: set[str] = set()
        self._changed_copies: Final[set[Copy]] = set()

    # ---------------------------------------------------------------- requests of consumers, and their answers

    def ask(self, copy: Copy, due: float = 0.0) -> None:
        """Note that a consumer is about to send a message back.

        It must not come again before `due`, in simulated seconds.
        """
        self._groups.add(copy.group)
        self._request_counts[copy] += 1
        self._due_times[copy] = min(due, self._due_times.get(copy, due))

    def refuse(self, copy: Copy) -> None:
        """Note that a consumer's request was refused, so that it had no effect."""
        self._refusal_counts[copy] += 1
        self._check_copy(copy)

    def answer(self, copy: Copy) -> None:
        """Check a message that was answered as stored."""
        require(self._stored_counts[copy] >= 1, "a message that is sent back is stored once it is answered", copy=copy)

    # ---------------------------------------------------------------- the log

    def see_waiting(self, copy: Copy) -> None:
        """Note that a copy waits. If it was moved, the same entry has the move from its old place."""
        self._stored_counts[copy] += 1
        self._changed_copies.add(copy)

    def see_moved(self, copy: Copy) -> None:
        """Note that a copy no longer waits at its old place."""
        self._stored_counts[copy] -= 1

    def see_record(self, copy: Copy, moment: float) -> None:
        """Check a record in a retry topic or a dead-letter topic. `moment` is the latest possible time by any clock."""
        if copy.group not in self._groups:
            return
        if copy.is_dead:
            self.happened["dead letter"] += 1
            self._stored_counts[copy] += 1
            self._changed_copies.add(copy)
            return
        self.happened["message came again"] += 1
        self._delivery_counts[copy] += 1
        require(
            self._delivery_counts[copy] <= self._stored_counts[copy],
            "a message is delivered again as often as it was sent back",
            copy=copy,
            came=self._delivery_counts[copy],
            stored=self._stored_counts[copy],
        )
        due = self._due_times.get(copy, 0.0)
        require(moment >= due, "no message is delivered again before its delay is over", copy=copy, due=due, at=moment)

    def check_entry(self) -> None:
        """Check the copies of an entry after all of it was seen."""
        while self._changed_copies:
            self._check_copy(self._changed_copies.pop())

    def _check_copy(self, copy: Copy) -> None:
        max_stored = self._request_counts[copy] - self._refusal_counts[copy]
        require(
            self._stored_counts[copy] <= max_stored or copy.group not in self._groups,
            "a message that is sent back is stored once for each request that was not refused",
            copy=copy,
            stored=self._stored_counts[copy],
            asked=self._request_counts[copy],
            refused=self._refusal_counts[copy],
        )
