"""Requests under way on one connection. Each waits for its answer until its attempt, or its call, is out of time.

An attempt's time begins when its frame is written, and no request expires before bytes that have arrived are read.
Otherwise a program that blocks the event loop for some seconds would report a time-out of a broker that answered at
once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from dledger_remoting.command import RemotingCommand

from ..errors import ClientError, ConnectError, RequestTimeoutError

STOOD_STILL_SECONDS: Final = 0.1
"""Minimum delay of a timer or a write, in seconds, that shows that the event loop was blocked."""

_TIMER_SLACK_SECONDS: Final = 0.005
"""Requests that expire within this time in seconds after the timer fires expire with it: n deadlines do not need n
timers.
"""

_IDLE_TURNS: Final = 2
"""Number of turns of the loop without a byte after which everything that has arrived is read."""

_READING_SECONDS: Final = 1.0
"""Time limit in seconds for reading bytes that have arrived, before requests expire."""

_MAX_LATE: Final = 64
"""Maximum number of late answers that are awaited."""

Late: TypeAlias = Callable[[RemotingCommand], None]
"""Called with an answer that comes after its request has expired."""


class _PendingRequest:
    """A request that waits for its answer. `limit` is the deadline of the call, `deadline` that of this attempt.

    `to_leader` says that the node was asked as the leader of its group.
    """

    __slots__ = ("deadline", "future", "limit", "on_late", "started", "to_leader")

    def __init__(
        self,
        started: float,
        deadline: float,
        limit: float,
        future: asyncio.Future[RemotingCommand],
        on_late: Late | None,
        *,
        to_leader: bool,
    ) -> None:
        self.started = started
        self.deadline = deadline
        self.limit = limit
        self.future = future
        self.on_late = on_late
        self.to_leader = to_leader


class RequestsUnderWay:
    """The requests of one connection. `on_expired` gets the longest wait of the requests that expired.

    `heard` counts arrived data; the connection adds to it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str, on_expired: Callable[[float], None]) -> None:
        self.heard = 0
        self._loop = loop
        self._address = address
        self._on_expired = on_expired
        self._pending: dict[int, _PendingRequest] = {}
        self._late_handlers: dict[int, Late] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self, opaque: int, limit: float, attempt_seconds: float, on_late: Late | None, *, to_leader: bool
    ) -> asyncio.Future[RemotingCommand]:
        """Add a request whose frame is about to be written."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        now = self._loop.time()
        deadline = min(limit, now + attempt_seconds)
        self._pending[opaque] = _PendingRequest(now, deadline, limit, future, on_late, to_leader=to_leader)
        if self._timer is None or deadline < self._timer_at:
            self._arm_timer(deadline)
        return future

    def forget(self, opaque: int) -> None:
        """Forget a request whose answer is not awaited any more."""
        self._pending.pop(opaque, None)

    def answered(self, command: RemotingCommand) -> None:
        """Give an answer to its request."""
        request = self._pending.pop(command.opaque, None)
        if request is not None:
            if not request.future.done():
                request.future.set_result(command)
        elif (on_late := self._late_handlers.pop(command.opaque, None)) is not None:
            on_late(command)

    def written_late(self, opaques: Iterable[int]) -> set[int]:
        """Begin the attempts of frames now that had to wait to be written.

        They waited because the loop was blocked or the peer does not read. Returns the frames that are not to be
        written, because their answers are not awaited any more.
        """
        now = self._loop.time()
        unwanted: set[int] = set()
        for opaque in opaques:
            request = self._pending.get(opaque)
            if request is None or request.future.done():
                unwanted.add(opaque)
            elif request.limit <= now:
                del self._pending[opaque]
                unwanted.add(opaque)
                request.future.set_exception(ConnectError(self._address, "nothing was sent before the call's deadline"))
            else:
                request.deadline = min(request.limit, request.deadline + now - request.started)
                request.started = now
        return unwanted

    def expire_by(self, deadline: float) -> None:
        """Limit the deadlines of all requests to a leader to `deadline`.

        Their expiry then says nothing about the connection.
        """
        now = self._loop.time()
        late = [one for one in self._pending.values() if one.to_leader and one.deadline > deadline]
        for request in late:
            request.deadline, request.started = deadline, now
        if late and deadline < self._timer_at:
            self._arm_timer(deadline)

    def fail(self, error: Callable[[], ClientError]) -> None:
        """Fail all requests, because the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._late_handlers.clear()
        pending, self._pending = self._pending, {}
        for request in pending.values():
            if not request.future.done():
                request.future.set_exception(error())

    def _arm_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        if now - self._timer_at < STOOD_STILL_SECONDS:
            self._expire(now)
        else:
            self._read_before_expiry(now + _READING_SECONDS, self.heard, 0)

    def _read_before_expiry(self, until: float, heard: int, idle_turns: int) -> None:
        """Wait until a turn of the loop brings no more data: the answers may still be in the socket."""
        if self.heard != heard:
            idle_turns = 0
        now = self._loop.time()
        if not self._pending:
            self._timer = None
        elif idle_turns >= _IDLE_TURNS or now >= until:
            self._expire(now)
        else:
            self._timer = self._loop.call_at(now, self._read_before_expiry, until, self.heard, idle_turns + 1)

    def _expire(self, now: float) -> None:
        """Fail the requests that are due, and set the timer for the next ones."""
        self._timer = None
        longest = -math.inf
        limit = now + _TIMER_SLACK_SECONDS
        for opaque in [opaque for opaque, request in self._pending.items() if request.deadline <= limit]:
            request = self._pending.pop(opaque)
            longest = max(longest, now - request.started)
            if request.on_late is not None and len(self._late_handlers) < _MAX_LATE:
                self._late_handlers[opaque] = request.on_late
            if not request.future.done():
                request.future.set_exception(RequestTimeoutError(self._address, now - request.started))
        if self._pending:
            self._arm_timer(min(request.deadline for request in self._pending.values()))
        if longest >= 0.0:
            self._on_expired(longest)
