"""Linearizable reads: they wait for a read index (Ongaro's thesis, section 6.4)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.replica.driver import Driver
from dledger.replica.standing import Standing, not_leader

ReadCallback = Callable[[Exception | None], None]


class ReadWaiters:
    """Reads that wait. All reads asked for in one turn of the event loop share one round of heartbeats."""

    def __init__(self, environment: Environment, standing: Standing, engine: Engine, driver: Driver) -> None:
        self._environment = environment
        self._standing = standing
        self._engine = engine
        self._driver = driver
        self._new_reads: list[ReadCallback] = []
        self._is_round_scheduled = False
        self._unconfirmed: list[tuple[int, list[ReadCallback]]] = []
        self._confirmed: list[tuple[int, int, ReadCallback]] = []
        self._serial = 0

    def add(self, callback: ReadCallback) -> None:
        """Call `callback(None)` once everything committed before this call is applied, or call it with the error.

        Leader only.
        """
        if self._standing.is_stopped or not self._engine.is_leader:
            callback(not_leader(self._engine))
            return
        self._new_reads.append(callback)
        if not self._is_round_scheduled:
            self._is_round_scheduled = True
            self._environment.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_round_scheduled = False
        callbacks, self._new_reads = self._new_reads, []
        if not callbacks:
            return
        number = self._engine.read_index(self._environment.now())
        if number is None:
            error = not_leader(self._engine)
            for callback in callbacks:
                callback(error)
        else:
            # The pump sends the heartbeats. It may confirm this round at once, in a group of one voter, or an earlier
            # round, if one voter fewer is needed now.
            self._unconfirmed.append((number, callbacks))
            self._driver.pump()

    def confirmed(self, number: int, index: int) -> None:
        """Note that rounds up to `number` may be answered once `index` is applied."""
        unconfirmed = []
        for round_number, callbacks in self._unconfirmed:
            if round_number <= number:
                for callback in callbacks:
                    self._serial += 1
                    insort(self._confirmed, (index, self._serial, callback), key=lambda item: item[:2])
            else:
                unconfirmed.append((round_number, callbacks))
        self._unconfirmed = unconfirmed

    def applied(self, index: int) -> None:
        """Answer the confirmed reads that wait for entries up to `index`."""
        while self._confirmed and self._confirmed[0][0] <= index:
            self._confirmed.pop(0)[2](None)

    def fail(self, error: Exception) -> None:
        """Fail all outstanding reads, also those whose round has not begun: none can be confirmed any more."""
        callbacks = [callback for _, _, callback in self._confirmed]
        callbacks += [callback for _, waiting in self._unconfirmed for callback in waiting]
        callbacks += self._new_reads
        self._confirmed, self._unconfirmed, self._new_reads = [], [], []
        for callback in callbacks:
            callback(error)
