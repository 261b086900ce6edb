"""Truth about transactions: what the log has of them beside what producers have asked for, and were told.

- A message is never seen before its commit was asked for, once after, and never after a rollback that was answered.
- Nobody is asked about a half while it is immune, nor more often than is allowed, and always about what stands there.
"""

from __future__ import annotations

from collections import Counter

from dledger_sim.log.invariants import require


class HalfTruth:
    """Told of every record, and of every answer to a producer of transactions; `happened` counts what rarely does."""

    def __init__(self, happened: Counter[str]) -> None:
        self._happened = happened
        self.most_checks = 0
        self.immune_s = 0.0
        """How often, and how long after it was sent, producers are asked about a half."""
        self.sent: dict[int, float] = {}
        """When operations were sent as halves, simulated seconds."""
        self._checks: Counter[int] = Counter()
        self.commit_asked: set[int] = set()
        """Those that their producers asked to commit, answered or not."""
        self._positions: dict[int, int] = {}
        """Where the halves stand."""
        self._seen: set[int] = set()
        self._rolled_back: set[int] = set()
        self._undecided: set[int] = set()

    def see_half(self, operation: int, position: int) -> None:
        """The half topic has a record."""
        require(operation in self.sent, "only what was sent as a half is one", operation=operation)
        require(operation not in self._positions, "a half is stored once", operation=operation, position=position)
        self._positions[operation] = position

    def see_check(self, operation: int, position: int, latest: float) -> None:
        """A producer is asked about a half, not later than `latest`, simulated seconds by the clock of nobody."""
        found = self._positions.get(operation)
        require(found == position, "a producer is asked about a half", operation=operation, asked=position, found=found)
        sent_at = self.sent[operation]
        require(latest >= sent_at + self.immune_s, "a half is immune for a while", operation=operation, sent_at=sent_at)
        self._checks[operation] += 1
        checks = self._checks[operation]
        require(checks <= self.most_checks, "nobody is asked for ever", operation=operation, checks=checks)
        self._happened["producer asked"] += 1

    def see_undecided(self, operation: int) -> None:
        """A half is put aside, because nobody has ended it."""
        ended = operation in self._seen or operation in self._rolled_back or operation in self._undecided
        require(operation in self._positions and not ended, "what is given up was open", operation=operation)
        self._undecided.add(operation)
        self._happened["transaction given up"] += 1

    def see_message(self, operation: int) -> None:
        """A topic of consumers has a record."""
        if operation not in self.sent:
            return
        require(operation in self._positions, "what is committed was a half", operation=operation)
        require(operation in self.commit_asked, "nothing is seen before its commit is asked for", operation=operation)
        require(operation not in self._rolled_back, "what is rolled back is never seen", operation=operation)
        require(operation not in self._undecided, "what is given up is never seen", operation=operation)
        require(operation not in self._seen, "a transaction is committed once", operation=operation)
        self._seen.add(operation)
        self._happened["transaction committed"] += 1

    def half_acknowledged(self, operation: int, position: int) -> None:
        """A producer was told where its half stands."""
        found = self._positions.get(operation)
        require(found == position, "an acknowledged half is in the log", operation=operation, found=found)

    def end_acknowledged(self, operation: int, *, committed: bool) -> None:
        """A producer was told that its transaction is committed, or rolled back."""
        seen = operation in self._seen
        require(seen == committed, "a transaction ends as its producer was told", operation=operation, seen=seen)
        if not committed:
            self._rolled_back.add(operation)
            self._happened["transaction rolled back"] += 1
