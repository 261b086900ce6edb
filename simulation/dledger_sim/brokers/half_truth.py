"""Truth about transactions: compares the log with the requests of producers and the answers to them.

- A message is never seen before its commit was requested, once after, and never after an answered rollback.
- No producer is asked about a half while the half is immune, nor more often than allowed. The question names a stored
  half.
"""

from __future__ import annotations

from collections import Counter

from dledger_sim.log.invariants import require


class HalfTruth:
    """Judge of every record and of every answer to a producer of transactions. `happened` counts rare events."""

    def __init__(self, happened: Counter[str]) -> None:
        self._happened = happened
        self.most_checks = 0
        self.immune_s = 0.0
        """Immune time of a half after its send, in seconds.

        `most_checks` is the maximum number of questions about a half.
        """
        self.sent: dict[int, float] = {}
        """Simulated time at which each operation was sent as a half, in seconds."""
        self._check_counts: Counter[int] = Counter()
        self.commit_asked: set[int] = set()
        """Operations whose producers requested a commit, answered or not."""
        self._positions: dict[int, int] = {}
        """Positions of the halves."""
        self._committed: set[int] = set()
        self._rolled_back: set[int] = set()
        self._given_up: set[int] = set()

    def see_half(self, operation: int, position: int) -> None:
        """Check a record of the half topic."""
        require(operation in self.sent, "only messages that were sent as halves are halves", operation=operation)
        require(operation not in self._positions, "a half is stored once", operation=operation, position=position)
        self._positions[operation] = position

    def see_check(self, operation: int, position: int, latest: float) -> None:
        """Check a question to a producer about a half.

        The question was sent at `latest` at the latest, in simulated seconds of no node's clock.
        """
        found = self._positions.get(operation)
        require(found == position, "a producer is asked about a half", operation=operation, asked=position, found=found)
        sent_at = self.sent[operation]
        require(latest >= sent_at + self.immune_s, "a half is immune for a while", operation=operation, sent_at=sent_at)
        self._check_counts[operation] += 1
        checks = self._check_counts[operation]
        require(checks <= self.most_checks, "no half is checked for ever", operation=operation, checks=checks)
        self._happened["producer asked"] += 1

    def see_undecided(self, operation: int) -> None:
        """Check a half that is put aside because no producer has ended it."""
        ended = operation in self._committed or operation in self._rolled_back or operation in self._given_up
        require(operation in self._positions and not ended, "a half that is given up was open", operation=operation)
        self._given_up.add(operation)
        self._happened["transaction given up"] += 1

    def see_message(self, operation: int) -> None:
        """Check a record in a topic of consumers."""
        if operation not in self.sent:
            return
        require(operation in self._positions, "a committed message was a half", operation=operation)
        require(
            operation in self.commit_asked, "no transaction is seen before its commit is asked for", operation=operation
        )
        require(
            operation not in self._rolled_back, "a transaction that is rolled back is never seen", operation=operation
        )
        require(operation not in self._given_up, "a transaction that is given up is never seen", operation=operation)
        require(operation not in self._committed, "a transaction is committed once", operation=operation)
        self._committed.add(operation)
        self._happened["transaction committed"] += 1

    def half_acknowledged(self, operation: int, position: int) -> None:
        """Check a half whose position an answer gave to its producer."""
        found = self._positions.get(operation)
        require(found == position, "an acknowledged half is in the log", operation=operation, found=found)

    def end_acknowledged(self, operation: int, *, committed: bool) -> None:
        """Check a transaction that was answered as committed or rolled back."""
        seen = operation in self._committed
        require(seen == committed, "a transaction ends as its producer was told", operation=operation, seen=seen)
        if not committed:
            self._rolled_back.add(operation)
            self._happened["transaction rolled back"] += 1
