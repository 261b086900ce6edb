"""Reads that must not be stale: they wait for a read index (Ongaro's thesis, 6.4)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from dledger.environment import Environment

ReadCallback = Callable[[Exception | None], None]


class ReadWaiters:
    """All reads asked for in one turn of the event loop share one round of heartbeats.

    `begin_round()` returns the round's number, or why this replica cannot confirm reads now; `carry_out()` then does
    what follows from that: it sends the heartbeats, and may tell of rounds that are confirmed.
    """

    def __init__(
        self, environment: Environment, begin_round: Callable[[], int | Exception], carry_out: Callable[[], None]
    ) -> None:
        self._environment = environment
        self._begin_round = begin_round
        self._carry_out = carry_out
        self._asked: list[ReadCallback] = []
        self._scheduled = False
        self._in_round: list[tuple[int, list[ReadCallback]]] = []
        self._confirmed: list[tuple[int, int, ReadCallback]] = []
        self._serial = 0

    def add(self, callback: ReadCallback) -> None:
        """`callback(None)` once everything committed before this call is applied, or with the error."""
        self._asked.append(callback)
        if not self._scheduled:
            self._scheduled = True
            self._environment.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        asked, self._asked = self._asked, []
        if not asked:
            return
        number = self._begin_round()
        if isinstance(number, Exception):
            for callback in asked:
                callback(number)
        else:
            # What is carried out may confirm it (a group of one voter), or an earlier one (a voter less is asked).
            self._in_round.append((number, asked))
            self._carry_out()

    def confirmed(self, number: int, index: int) -> None:
        """Rounds up to `number` may be served once `index` is applied."""
        waiting = []
        for round_number, callbacks in self._in_round:
            if round_number <= number:
                for callback in callbacks:
                    self._serial += 1
                    insort(self._confirmed, (index, self._serial, callback), key=lambda item: item[:2])
            else:
                waiting.append((round_number, callbacks))
        self._in_round = waiting

    def applied(self, index: int) -> None:
        """Everything up to `index` is applied."""
        while self._confirmed and self._confirmed[0][0] <= index:
            self._confirmed.pop(0)[2](None)

    def fail(self, error: Exception) -> None:
        """No outstanding read can be confirmed any more, those included whose round was still to begin."""
        callbacks = [callback for _, _, callback in self._confirmed]
        callbacks += [callback for _, asked in self._in_round for callback in asked]
        callbacks += self._asked
        self._confirmed, self._in_round, self._asked = [], [], []
        for callback in callbacks:
            callback(error)
