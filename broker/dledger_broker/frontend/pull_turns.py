"""Turns of pulls: a turn of the event loop answers a few of them, and beside sends fewer, behind these.

A consumer that catches up has a pull of each of its queues in flight, and asks again as soon as it is answered.
Answered as they come, they keep the loop for a millisecond before the sends that came with them are staged, and before
it sees what acknowledges those that are on their way. Thousands of pulls of one connection would keep it for seconds,
and all that they read in memory, before anything is written.

Channels take turns; the pulls of one are handled in the order in which they came, and so is what waits behind them.
Nothing but sends overtakes these: a client that pulls with an offset to commit, and then commits a newer one, would
find the older one committed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

from dledger.environment import Environment
from dledger_broker.kernel.counters import BrokerCounters

MAX_PULLS: Final = 32
"""A turn handles no more: of 256 KiB each they take some 10 ms, and are written before more are read."""
MAX_PULLS_BESIDE_SENDS: Final = 8
"""And none behind one that found messages: that takes as long as eight that find nothing."""


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
    """The pulls of all connections that wait for their turn. Without sends under way few do."""

    def __init__(self, env: Environment, counters: BrokerCounters) -> None:
        self._env = env
        self._counters = counters
        self._sends: SendsUnderWay
        self._pulls: PullsOfTurn
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """By channel; the first one's turn is next."""
        self._left = MAX_PULLS
        """So many more may be handled before a turn that is yet to come."""
        self._is_due = False
        """A turn will come, or is now."""

    def attach(self, sends: SendsUnderWay, pulls: PullsOfTurn) -> None:
        """Name the sends and who answers pulls, before the first pull."""
        self._sends = sends
        self._pulls = pulls

    def add(self, channel: str, pull: Callable[[], None]) -> None:
        """Have a pull of a channel handled in its turn; `take` is called next."""
        waiting = self._waiting.get(channel)
        if waiting is None:
            self._waiting[channel] = deque((pull,))
        else:
            waiting.append(pull)

    def take(self) -> None:
        """Handle what may be handled now, and the rest in the turns that follow."""
        if self._waiting and not self._is_due:
            self._handle_some()

    def let_pass(self, channel: str) -> bool:
        """Handle the pulls of a channel that wait, before a request of it that is neither a pull nor a send.

        False if they are too many for this turn: the request is to be added behind them (`add_behind`).
        """
        waiting = self._waiting.get(channel)
        if waiting is None:
            return True
        if len(waiting) > self._left:
            return False
        self.take_of(channel)
        return True

    def take_of(self, channel: str) -> None:
        """Handle all that waits of a channel."""
        waiting = self._waiting.pop(channel, None)
        if waiting is None:
            return
        self._left = max(0, self._left - len(waiting))
        self._pulls.begin_turn()
        try:
            while waiting:
                waiting.popleft()()
        finally:
            self._pulls.end_turn()

    def take_all(self) -> None:
        """Handle all that waits: the node stops."""
        while self._waiting:
            self._left = MAX_PULLS
            self._handle(MAX_PULLS)

    def add_behind(self, channel: str, handle: Callable[[], None]) -> None:
        """Have a request handled behind the pulls of its channel, once they are answered."""

        def behind() -> None:
            self._pulls.end_turn()
            handle()

        self.add(channel, behind)

    def _turn(self) -> None:
        self._left = MAX_PULLS
        self._handle_some()

    def _handle_some(self) -> None:
        self._is_due = True
        try:
            if self._sends.are_under_way:
                self._handle_beside_sends()
            else:
                self._handle(self._left)
        finally:
            self._is_due = bool(self._waiting)
            if self._is_due:
                self._env.call_soon(self._turn)

    def _handle_beside_sends(self) -> None:
        found = self._counters.reads_found
        for _ in range(min(self._left, MAX_PULLS_BESIDE_SENDS)):
            self._handle(1)
            if not self._waiting or self._counters.reads_found != found:
                break

    def _handle(self, most: int) -> None:
        """Handle the next of those that wait; they may be answered as late as when all are handled."""
        self._pulls.begin_turn()
        try:
            while self._waiting and most:
                most -= 1
                self._left -= 1
                self._next()()
        finally:
            self._pulls.end_turn()

    def _next(self) -> Callable[[], None]:
        channel, waiting = self._waiting.popitem(last=False)
        pull = waiting.popleft()
        if waiting:
            self._waiting[channel] = waiting  # behind the other channels
        return pull
