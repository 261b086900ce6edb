"""Turns of pulls: beside sends they are answered behind these, a few in a turn of the event loop.

A consumer that catches up has a pull of each of its queues in flight, and asks again as soon as it is answered.
Answered as they come, they keep the loop for a millisecond before the sends that came with them are staged, and before
it sees what acknowledges those that are on their way.

Nothing but sends overtakes a pull. A client that pulls with an offset to commit, and then commits a newer one, would
find the older one committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from dledger.environment import Environment
from dledger_broker.kernel.counters import BrokerCounters

MAX_PULLS: Final = 8
"""A turn beside sends handles no more pulls, and none behind one that found messages: that takes as long as eight that
find nothing."""


class SendsUnderWay(Protocol):
    """`send.SendRequests`."""

    @property
    def are_under_way(self) -> bool:
        """Whether sends are on their way, or were a moment ago, or wait to be staged."""


class PullsOfTurn(Protocol):
    """`pull.PullRequests`, which may read pulls that are handled one behind the other together."""

    def begin_turn(self) -> None:
        """Pulls come that may be answered as late as in `end_turn`."""

    def end_turn(self) -> None:
        """Answer those that came since `begin_turn`."""


class PullTurns:
    """The pulls of all connections that wait for their turn, in the order in which they came.

    Without sends under way none waits for a turn.
    """

    def __init__(self, env: Environment, counters: BrokerCounters) -> None:
        self._env = env
        self._counters = counters
        self._sends: SendsUnderWay
        self._pulls: PullsOfTurn
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False
        """A turn will come, or is now."""

    def attach(self, sends: SendsUnderWay, pulls: PullsOfTurn) -> None:
        """Name the sends and who answers pulls, before the first pull."""
        self._sends = sends
        self._pulls = pulls

    def add(self, pull: Callable[[], None]) -> None:
        """Have a pull handled in its turn; `take` is called next."""
        self._waiting.append(pull)

    def take(self) -> None:
        """Handle what may be handled now, and the rest in the turns that follow."""
        if self._waiting and not self._is_due:
            self._turn()

    def take_all(self) -> None:
        """Handle all that wait, before a request that is neither a pull nor a send."""
        while self._waiting:
            self._handle(len(self._waiting))

    def _turn(self) -> None:
        self._is_due = True
        try:
            if self._sends.are_under_way:
                self._handle_some()
            else:
                self.take_all()
        finally:
            self._is_due = bool(self._waiting)
            if self._is_due:
                self._env.call_soon(self._turn)

    def _handle_some(self) -> None:
        found, handled = self._counters.reads_found, 0
        while self._waiting and handled < MAX_PULLS and self._counters.reads_found == found:
            handled += 1
            self._handle(1)

    def _handle(self, most: int) -> None:
        """Handle the first that wait; they may be answered as late as when all are handled."""
        self._pulls.begin_turn()
        try:
            while self._waiting and most:
                most -= 1
                self._waiting.popleft()()
        finally:
            self._pulls.end_turn()
