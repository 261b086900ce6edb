"""Turns of pulls and of the requests behind them: a turn of the event loop answers a few pulls, and fewer beside sends.

A consumer that catches up has a pull of each of its queues in flight, and pulls again as soon as it is answered.
Without turns, its pulls keep the loop for a millisecond before the sends that arrived with them are staged. They also
delay the acknowledgements of the sends under way. Thousands of pulls of one connection would keep the loop for seconds,
and all that they read in memory, before anything is written.

Other requests are handled on arrival while that has not taken long. One read holds thousands of them, and each may cost
a thousand times as much as its bytes. Later requests then wait for turns like pulls.

Channels take turns. The pulls of a channel, and the requests behind them, are handled in the order of their arrival.
Only sends overtake them. Otherwise a client that pulls with an offset to commit, and then commits a newer offset, would
find the older offset committed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

from dledger.environment import Environment
from dledger_broker.kernel.counters import BrokerCounters

MAX_PULLS: Final = 32
"""Maximum number of pulls in a turn. With 256 KiB each they take some 10 ms, and are written before more are read."""
MAX_PULLS_BESIDE_SENDS: Final = 8
"""Maximum number of pulls in a turn beside sends. A pull that finds messages ends the turn: it takes as long as eight
pulls without messages.
"""
SLICE_S: Final = 0.02
"""Maximum time in seconds of a turn for waiting requests, and for requests handled on arrival. The last request may
take longer.
"""


class SendsUnderWay(Protocol):
    """The handler of sends, `send.SendRequests`."""

    @property
    def has_sends_in_flight(self) -> bool:
        """True if sends are on their way, or were a moment ago, or wait to be staged."""


class PullsOfTurn(Protocol):
    """The handler of pulls, `features.pulling.requests.PullRequests`. It may read consecutive pulls together."""

    def begin_turn(self) -> None:
        """Begin a turn. The pulls that follow may be answered as late as in `end_turn`."""

    def end_turn(self) -> None:
        """Answer the pulls that were added since `begin_turn`."""


class PullTurns:
    """The pulls of all connections that wait for their turn. Without sends under way, few pulls wait."""

    def __init__(self, env: Environment, counters: BrokerCounters) -> None:
        self._env = env
        self._counters = counters
        self._sends: SendsUnderWay
        self._pulls: PullsOfTurn
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """Waiting requests by channel. The first channel has the next turn."""
        self._clogged: dict[str, deque[Callable[[], None]]] = {}
        """Waiting requests of channels whose clients do not read. They get no turn until these read again."""
        self._left = MAX_PULLS
        """Number of requests that may still be handled before the next turn."""
        self._is_due = False
        """True if a turn is scheduled, or is running."""
        self._until = 0.0
        """End of the present turn."""
        self._spent_s = 0.0
        """Time in seconds of the requests that were handled on arrival, since these requests last had to wait."""
        self._is_over = False
        """True if requests wait until the next turn of the event loop."""

    def attach(self, sends: SendsUnderWay, pulls: PullsOfTurn) -> None:
        """Set the handlers of sends and pulls, before the first pull."""
        self._sends = sends
        self._pulls = pulls

    def add(self, channel: str, pull: Callable[[], None]) -> None:
        """Have a pull of a channel handled in its turn. The caller calls `take` next."""
        waiting = self._clogged.get(channel)
        if waiting is None:
            waiting = self._waiting.get(channel)
        if waiting is None:
            self._waiting[channel] = deque((pull,))
        else:
            waiting.append(pull)

    def clog(self, channel: str) -> None:
        """Give the waiting requests of a channel no turn, because its client does not read."""
        self._clogged[channel] = self._waiting.pop(channel, deque())

    def unclog(self, channel: str) -> None:
        """Give the waiting requests of a channel turns again."""
        waiting = self._clogged.pop(channel, None)
        if waiting:
            self._waiting[channel] = waiting
            if not self._is_due:
                self._is_due = True
                self._env.call_soon(self._turn)

    def end_turn_early(self) -> None:
        """Handle no more in this turn, because the collected answers have to be written first."""
        self._left = 0

    def take(self) -> None:
        """Handle the requests that may be handled now, and all others in the following turns."""
        if self._waiting and not self._is_due:
            self._handle_some()

    def let_pass(self, channel: str) -> bool:
        """Handle the waiting pulls of a channel, before a request of it that is neither a pull nor a send.

        Return False if they are too many for this turn, or its time has passed. The caller then adds the request behind
        them (`add_behind`).
        """
        if self._is_over or channel in self._clogged:
            return False
        waiting = self._waiting.get(channel)
        if waiting is None:
            return True
        if len(waiting) > self._left:
            return False
        self.take_of(channel)
        return channel not in self._clogged

    def spend(self, seconds: float) -> None:
        """Count the time of a request that was handled on arrival."""
        self._spent_s += seconds
        if self._spent_s > SLICE_S and not self._is_over:
            self._is_over = True
            self._left = 0
            self._env.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_over = False
        self._spent_s = 0.0

    def take_of(self, channel: str) -> None:
        """Handle all waiting requests of a channel, also of a clogged channel that is gone."""
        waiting = self._clogged.pop(channel, None) or self._waiting.pop(channel, None)
        if waiting is None:
            return
        self._left = max(0, self._left - len(waiting))
        self._pulls.begin_turn()
        try:
            while waiting:
                waiting.popleft()()
                if channel in self._clogged:
                    self._clogged[channel].extend(waiting)
                    break
        finally:
            self._pulls.end_turn()

    def take_all(self) -> None:
        """Handle all waiting requests, because the node stops."""
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
        self._until = self._env.now() + SLICE_S
        try:
            if self._sends.has_sends_in_flight:
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
            if not self._waiting or self._left <= 0 or self._counters.reads_found != found:
                break

    def _handle(self, most: int) -> None:
        """Handle the next waiting requests. They may all be answered at the end."""
        self._pulls.begin_turn()
        try:
            while self._waiting and most and self._left > 0:
                most -= 1
                self._left -= 1
                self._next()()
                if self._env.now() > self._until:
                    self._left = 0
        finally:
            self._pulls.end_turn()

    def _next(self) -> Callable[[], None]:
        channel, waiting = self._waiting.popitem(last=False)
        pull = waiting.popleft()
        if waiting:
            self._waiting[channel] = waiting  # behind all other channels
        return pull
