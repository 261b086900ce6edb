"""Truth about messages that consumers send back, read from the log beside what consumers asked for and were told.

- What is sent back is stored once for each request (36) that is answered 0, and at most once more for each of unknown
  outcome; never for one that is refused. Either it waits for the group's retry topic, or it is a dead letter.
- It comes again as often as it waits, and not before its delay is over.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final, NamedTuple

from dledger_remoting.topics import DLQ_PREFIX, RETRY_PREFIX, is_dead_letter_topic, is_retry_topic
from dledger_sim.log.invariants import require

_TIMES: Final = struct.Struct(">i")
_TIMES_AT: Final = 72
"""In a record."""


class Copy(NamedTuple):
    """A message as it is stored when a group sends it back, delivered `times` times by then."""

    group: str
    operation: int
    times: int
    is_dead: bool


def copy_in(topic: str, operation: int, times: int) -> Copy | None:
    """What a record of a topic is, or will be when it has waited; None if it was sent."""
    if is_retry_topic(topic):
        return Copy(topic.removeprefix(RETRY_PREFIX), operation, times, is_dead=False)
    if is_dead_letter_topic(topic):
        return Copy(topic.removeprefix(DLQ_PREFIX), operation, times, is_dead=True)
    return None


def copy_at(records: bytes, place: int, topic: str, operation: int) -> Copy | None:
    """The same of the record that begins at a place."""
    return copy_in(topic, operation, _TIMES.unpack_from(records, place + _TIMES_AT)[0])


class SentBackTruth:
    """Told of every copy in the log, of every request for one and of its answer; `happened` counts what there was.

    Of groups that have sent nothing back it says nothing: what they popped comes again, too (`pop_truth`).
    """

    def __init__(self, happened: Counter[str]) -> None:
        self.happened = happened
        self._asked: Counter[Copy] = Counter()
        self._refused: Counter[Copy] = Counter()
        self._answered: Counter[Copy] = Counter()
        self._stored: Counter[Copy] = Counter()
        """How many wait, waited, or are dead letters."""
        self._delivered: Counter[Copy] = Counter()
        self._due: dict[Copy, float] = {}
        self._groups: set[str] = set()
        self._changed: Final[set[Copy]] = set()

    # ---------------------------------------------------------------- what consumers ask for, and are told

    def ask(self, copy: Copy, due: float = 0.0) -> None:
        """A consumer is about to send a message back; it is not to come again before `due`, simulated seconds."""
        self._groups.add(copy.group)
        self._asked[copy] += 1
        self._due[copy] = min(due, self._due.get(copy, due))

    def refuse(self, copy: Copy) -> None:
        """A consumer was told that nothing came of one of its requests."""
        self._refused[copy] += 1
        self._check(copy)

    def answer(self, copy: Copy) -> None:
        """A consumer was told that its message is stored."""
        self._answered[copy] += 1
        require(
            self._stored[copy] >= self._answered[copy],
            "what is sent back is stored once it is answered",
            copy=copy,
            stored=self._stored[copy],
            answered=self._answered[copy],
        )

    # ---------------------------------------------------------------- the log

    def see_waiting(self, copy: Copy) -> None:
        """One waits; it may have been moved, of which the same entry tells."""
        self._stored[copy] += 1
        self._changed.add(copy)

    def see_moved(self, copy: Copy) -> None:
        """One does not wait where it did."""
        self._stored[copy] -= 1

    def see_record(self, copy: Copy, moment: float) -> None:
        """A record stands in a retry topic, or among dead letters, from a moment on; `moment` is the latest it can be
        by the clock of nobody.
        """
        if copy.group not in self._groups:
            return
        if copy.is_dead:
            self.happened["dead letter"] += 1
            self._stored[copy] += 1
            self._changed.add(copy)
            return
        self.happened["message came again"] += 1
        self._delivered[copy] += 1
        require(
            self._delivered[copy] <= self._stored[copy],
            "a message comes again as often as it was sent back",
            copy=copy,
            came=self._delivered[copy],
            stored=self._stored[copy],
        )
        due = self._due.get(copy, 0.0)
        require(moment >= due, "nothing comes again before its delay is over", copy=copy, due=due, at=moment)

    def check_entry(self) -> None:
        """All of an entry was seen."""
        while self._changed:
            self._check(self._changed.pop())

    def _check(self, copy: Copy) -> None:
        most = self._asked[copy] - self._refused[copy]
        require(
            self._stored[copy] <= most or copy.group not in self._groups,
            "what is sent back is stored once for each request that was not refused",
            copy=copy,
            stored=self._stored[copy],
            asked=self._asked[copy],
            refused=self._refused[copy],
        )
