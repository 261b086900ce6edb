"""Request memory: a bound on the memory for requests that have begun to arrive, over all connections of a port.

The received part of a request is held until the rest has come. Many connections that each send most of a large request
therefore hold a lot of memory, by bad luck or on purpose. A port reports to a `RequestMemory` each read that leaves a
request unfinished.

- While little is held, a report costs one addition.
- Once only `room_bytes` of `max_bytes` are left, there is a shortage, and connections take turns. Requests that lack
  least go first, as many as there is room for.
- Connections without a turn are not read. Their data waits in the kernel's buffers and in their clients.
- A request that lacks at most `SMALL_BYTES` has its turn at once.
- A turn lasts `timeout_s`. A connection that has not sent the rest by then is cut off if others wait for a turn, and
  gets another turn otherwise.
- If more than `max_bytes` are held nevertheless, connections are cut off until `room_bytes` are left again. The
  connections that hold most are cut off first, and connections that have sent something in their turn last.
- The shortage ends when at most half as many bytes are held as at its beginning. All connections are then read
  again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

from dledger_base.invariants import invariant

SMALL_BYTES: Final = 64 << 10
"""Maximum number of bytes that a request may lack to have its turn without waiting."""
COMPLAINT_INTERVAL_S: Final = 10.0

_log = logging.getLogger(__name__)


class Sender(Protocol):
    """A connection whose client sends requests."""

    arrived: int
    """Bytes of an unfinished request that are held, 0 if there is none."""
    missing: int
    """Bytes that the unfinished request lacks."""

    def hold(self) -> None:
        """Stop reading until `let_go`."""

    def let_go(self) -> None:
        """Resume reading."""

    def cut_off(self, why: str) -> None:
        """Close the connection and drop its unfinished request. Calls `RequestMemory.ended`."""


class UnprovenSender(Sender, Protocol):
    """A connection whose requests arrive in the small memory of strangers until one was signed for an account."""

    @property
    def is_strange(self) -> bool:
        """True if the arriving request is in that memory."""


SenderT = TypeVar("SenderT", bound=UnprovenSender)


class Senders(Generic[SenderT]):
    """The connections whose requests arrive in one of two memories: that of strangers, or the other one."""

    def __init__(self, connections: Collection[SenderT], *, are_strange: bool) -> None:
        self._connections = connections
        self._are_strange = are_strange

    def __iter__(self) -> Iterator[SenderT]:
        return (one for one in self._connections if one.is_strange == self._are_strange)


class Timers(Protocol):
    """Clock and timers of an event loop."""

    def time(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        """Call once, `delay` seconds from now."""


@dataclass(frozen=True, slots=True)
class RequestMemoryLimits:
    """Limits: at most `max_bytes` are held, plus one read. `largest_bytes` is the maximum size of a request.

    A turn lasts `timeout_s` seconds.
    """

    max_bytes: int
    largest_bytes: int
    timeout_s: float

    def __post_init__(self) -> None:
        """Check that the largest request fits beside others that hold as much memory."""
        invariant(
            self.max_bytes >= 2 * self.largest_bytes,
            "two of the largest requests fit",
            max_bytes=self.max_bytes,
            largest_bytes=self.largest_bytes,
        )

    @property
    def room_bytes(self) -> int:
        """Memory that is reserved for connections that have a turn, in bytes."""
        return max(self.largest_bytes, self.max_bytes // 4)


class RequestMemory:
    """Memory of unfinished requests on the connections of one port.

    `senders` are the open connections. `on_shortage` is called when they begin to take turns, and when connections are
    cut off because more than `max_bytes` are held. `on_timeout` is called when a connection is cut off after its turn.
    """

    def __init__(
        self,
        senders: Iterable[Sender],
        timers: Timers,
        limits: RequestMemoryLimits,
        *,
        on_shortage: Callable[[], None],
        on_timeout: Callable[[], None],
    ) -> None:
        self.held_bytes = 0
        self._senders = senders
        self._timers = timers
        self._max_bytes = limits.max_bytes
        self._tight_bytes = limits.max_bytes - limits.room_bytes
        self._timeout_s = limits.timeout_s
        self._on_shortage = on_shortage
        self._on_timeout = on_timeout
        self._alarm_bytes = self._tight_bytes
        """A read calls `_handle_growth` if more bytes than this are held after it. 0 while connections take turns."""
        self._turns: dict[Sender, float] = {}
        """End of each connection's turn, by the clock of `timers`. The turn that ends first is first."""
        self._active: set[Sender] = set()
        """Connections with a turn that have sent something since it began."""
        self._promised_bytes = 0
        """Sum of the bytes that the requests of connections with a turn lack."""
        self._waiting: list[tuple[int, int, Sender]] = []
        """Heap of waiting connections. The request that lacks least is first, and among equals the oldest.

        The heap may hold connections that wait no longer and are not in `_still_waiting`.
        """
        self._still_waiting: set[Sender] = set()
        """Connections in `_waiting` that still wait."""
        self._serial = count()
        self._timer: asyncio.TimerHandle | None = None
        self._next_complaint_at = 0.0

    @property
    def is_tight(self) -> bool:
        """True if connections take turns."""
        return self._alarm_bytes == 0

    def grew(self, sender: Sender, size: int) -> None:
        """Count a read of `sender` that left its request unfinished and added `size` bytes to it."""
        self.held_bytes += size
        if self.held_bytes > self._alarm_bytes:
            self._handle_growth(sender, size)

    def ended(self, sender: Sender) -> None:
        """Note that the request of `sender` is complete or given up, and subtract its `arrived` bytes.

        Call it before `arrived` and `missing` change.
        """
        self.held_bytes -= sender.arrived
        if self._alarm_bytes:
            return
        if sender in self._turns:
            self._end_turn(sender)
        if sender in self._still_waiting:
            self._still_waiting.discard(sender)
            sender.let_go()
        if self.held_bytes <= self._tight_bytes // 2:
            self._relax()
        else:
            self._give_turns()

    def close(self) -> None:
        """Stop the timer, so that it cuts off no connection any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _handle_growth(self, sender: Sender, size: int) -> None:
        if not self.is_tight:
            self._tighten()
        elif sender in self._turns:
            self._promised_bytes -= size
            self._active.add(sender)
        elif sender not in self._still_waiting:
            self._queue(sender)
            self._give_turns()
        if self.held_bytes > self._max_bytes:
            self._cut_off_largest()

    def _tighten(self) -> None:
        self._on_shortage()
        self._alarm_bytes = 0
        now = self._timers.time()
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + COMPLAINT_INTERVAL_S
            _log.warning(
                "event=short_of_memory held_bytes=%d max_partial_bytes=%d turn_s=%g consequence='until fewer "
                "bytes of unfinished requests are held, their senders take turns'",
                self.held_bytes,
                self._max_bytes,
                self._timeout_s,
            )
        for sender in self._senders:
            if sender.arrived:
                self._queue(sender)
        self._give_turns()

    def _relax(self) -> None:
        self._alarm_bytes = self._tight_bytes
        self._turns.clear()
        self._active.clear()
        self._promised_bytes = 0
        self._waiting.clear()
        still_waiting, self._still_waiting = self._still_waiting, set()
        for sender in still_waiting:
            sender.let_go()

    def _queue(self, sender: Sender) -> None:
        """Let a connection wait for its turn, or begin its turn if it lacks little."""
        if sender.missing <= SMALL_BYTES:
            self._begin_turn(sender)
        else:
            self._still_waiting.add(sender)
            heappush(self._waiting, (sender.missing, next(self._serial), sender))
            sender.hold()

    def _give_turns(self) -> None:
        """Give a turn to as many connections as there is room for, but at least one has a turn."""
        while self._waiting:
            missing, _, sender = self._waiting[0]
            if sender in self._still_waiting:
                if self._turns and self.held_bytes + self._promised_bytes + missing > self._max_bytes:
                    return
                self._still_waiting.discard(sender)
                self._begin_turn(sender)
                sender.let_go()
            heappop(self._waiting)

    def _begin_turn(self, sender: Sender) -> None:
        self._turns[sender] = self._timers.time() + self._timeout_s
        self._promised_bytes += sender.missing
        if self._timer is None:
            self._timer = self._timers.call_later(self._timeout_s, self._end_late_turns)

    def _end_turn(self, sender: Sender) -> None:
        del self._turns[sender]
        self._active.discard(sender)
        self._promised_bytes -= sender.missing

    def _end_late_turns(self) -> None:
        self._timer = None
        now = self._timers.time()
        late = [sender for sender, until in self._turns.items() if until <= now]
        for sender in sorted(late, key=_arrived_bytes, reverse=True):
            if sender not in self._turns:
                continue  # cutting off another connection has ended the shortage
            if not self._still_waiting:
                del self._turns[sender]  # no other connection waits, so this one gets another turn
                self._turns[sender] = now + self._timeout_s
            else:
                self._on_timeout()
                sender.cut_off(
                    f"it sent {sender.arrived} bytes of a request, and the {sender.missing} that it lacks did not come "
                    f"within {self._timeout_s:g} s while others waited for memory"
                )
        if self._turns:
            until = next(iter(self._turns.values()))
            self._timer = self._timers.call_later(until - now, self._end_late_turns)

    def _cut_off_largest(self) -> None:
        """Cut off connections until `room_bytes` are left: those that hold most first, those in `_active` last."""
        self._on_shortage()
        by_size = sorted(self._senders, key=_arrived_bytes, reverse=True)
        for sender in sorted(by_size, key=self._active.__contains__):
            if self.held_bytes <= self._tight_bytes:
                return
            sender.cut_off(
                f"it held {sender.arrived} bytes of an unfinished request, more than others, when all of them held "
                f"{self.held_bytes}: the limit is max_partial_bytes = {self._max_bytes}"
            )


def _arrived_bytes(sender: Sender) -> int:
    return sender.arrived
