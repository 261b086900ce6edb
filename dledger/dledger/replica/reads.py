"""Reads that must not be stale: they wait for a read index (Ongaro's thesis, 6.4)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.replica.driver import Driver
from dledger.replica.standing import not_leader

ReadCallback = Callable[[Exception | None], None]


class ReadWaiters:
    """All reads asked for in one turn of the event loop share one round of heartbeats."""

    def __init__(self, environment: Environment, engine: Engine, driver: Driver) -> None:
        self._environment = environment
        self._engine = engine
        self._driver = driver
        self._asked: list[ReadCallback] = []
        self._scheduled = False
        self._in_round: list[tuple[int, list[ReadCallback]]] = []
        self._confirmed: list[tuple[int, int, ReadCallback]] = []
        self._serial = 0

    def add(self, callback: ReadCallback) -> None:
        """`callback(None)` once everything committed before this call is applied, or with the error; leader only."""
        if self._driver.is_stopped or not self._engine.is_leader:
            callback(not_leader(self._engine))
            return
        self._asked.append(callback)
        if not self._scheduled:
            self._scheduled = True
            self._environment.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        asked, self._asked = self._asked, []
        if not asked:
            return
        number = self._engine.read_index(self._environment.now())
        if number is None:
            error = not_leader(self._engine)
            for callback in asked:
                callback(error)
        else:
            # Carrying out sends the heartbeats; it may confirm this round (a group of one voter), or an earlier one (a
            # voter less is asked).
            self._in_round.append((number, asked))
            self._driver.pump()

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
