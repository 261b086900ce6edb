"""Request memory: a bound on what is held of requests that have begun to arrive, over all connections of a port.

What has arrived of a request is held in memory until the rest has come, so that many connections that each send most of
a large one hold a lot of it, by bad luck or on purpose.  A port tells a `RequestMemory` of every read that leaves a
request unfinished.

- While little is held, nothing happens but an addition.
- Once only `room_bytes` are left, connections take turns.  Those whose requests lack least go first, as many as there
  is room for; what the others send waits in the kernel's buffers and in their clients.  A request that lacks no more
  than `SMALL_BYTES` has its turn at once.
- A turn lasts `timeout_s`.  Whoever has not sent the rest by then is cut off if others wait for the memory.
- Should more than `max_bytes` be held all the same, those who hold most and make no use of a turn are cut off.
- When no more than half of what began it is held, everybody is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from dledger.invariants import invariant

SMALL_BYTES: Final = 64 << 10
"""What lacks no more than this never waits."""
COMPLAINT_INTERVAL_S: Final = 10.0

_log = logging.getLogger(__name__)


class Sender(Protocol):
    """A connection whose client sends requests."""

    arrived: int
    """Bytes of an unfinished request that are held, 0 if there is none."""
    missing: int
    """Bytes that it lacks."""

    def hold(self) -> None:
        """Read no more until `let_go`."""

    def let_go(self) -> None:
        """Read again."""

    def cut_off(self, why: str) -> None:
        """Close, and give up what has arrived; calls `RequestMemory.ended`."""


class Timers(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float:
        """Seconds of a clock that never goes back."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        """Call once, `delay` seconds from now."""


@dataclass(frozen=True, slots=True)
class RequestMemoryLimits:
    """At most `max_bytes` are held, and what one more read brings; `largest_bytes` is the size of the largest request.

    A turn lasts `timeout_s`.
    """

    max_bytes: int
    largest_bytes: int
    timeout_s: float

    def __post_init__(self) -> None:
        """Check that the largest request can arrive while as much is held of others."""
        invariant(
            self.max_bytes >= 2 * self.largest_bytes,
            "two of the largest requests fit",
            max_bytes=self.max_bytes,
            largest_bytes=self.largest_bytes,
        )

    @property
    def room_bytes(self) -> int:
        """What is kept for those who have a turn."""
        return max(self.largest_bytes, self.max_bytes // 4)


class RequestMemory:
    """What is held of unfinished requests on the connections of one port.

    `senders` are the open connections.  `on_shortage` is called when they begin to take turns, and when some are cut
    off because even that was not enough; `on_timeout` when one is cut off because its turn was over.
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
        """Growth beyond it needs a decision: any growth at all while connections take turns."""
        self._turns: dict[Sender, float] = {}
        """Who has a turn until when, in that order."""
        self._using: set[Sender] = set()
        """Those of them that have sent something since."""
        self._promised = 0
        """What the requests of those lack."""
        self._waiting: list[tuple[int, int, Sender]] = []
        """A heap: who lacks least comes first, and of equals who came first."""
        self._held: set[Sender] = set()
        """Those of `_waiting` that still wait."""
        self._serial = count()
        self._timer: asyncio.TimerHandle | None = None
        self._complain_at = 0.0

    @property
    def is_tight(self) -> bool:
        """Whether connections take turns."""
        return self._alarm_bytes == 0

    def grew(self, sender: Sender, size: int) -> None:
        """A read of `sender` left its request unfinished and added `size` bytes to what is held of it."""
        self.held_bytes += size
        if self.held_bytes > self._alarm_bytes:
            self._decide(sender, size)

    def ended(self, sender: Sender) -> None:
        """The request of `sender` is complete, or given up: its `arrived` bytes are held no more.

        To be called before `arrived` and `missing` change.
        """
        self.held_bytes -= sender.arrived
        if self._alarm_bytes:
            return
        if sender in self._turns:
            self._end_turn(sender)
        if sender in self._held:
            self._held.discard(sender)
            sender.let_go()
        if self.held_bytes <= self._tight_bytes // 2:
            self._relax()
        else:
            self._give_turns()

    def close(self) -> None:
        """Stop the clock; nobody is read or cut off any more on its account."""
        if self._timer is not None:
            self._timer.cancel()

    def _decide(self, sender: Sender, size: int) -> None:
        if not self.is_tight:
            self._tighten()
        elif sender in self._turns:
            self._promised -= size
            self._using.add(sender)
        elif sender not in self._held:
            self._queue(sender)
            self._give_turns()
        if self.held_bytes > self._max_bytes:
            self._shed()

    def _tighten(self) -> None:
        self._on_shortage()
        self._alarm_bytes = 0
        now = self._timers.time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_INTERVAL_S
            _log.warning(
                "event=short_of_memory held_bytes=%d max_partial_bytes=%d turn_s=%g consequence='until less of "
                "unfinished requests is held, those who send them take turns'",
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
        self._using.clear()
        self._promised = 0
        self._waiting.clear()
        held, self._held = self._held, set()
        for sender in held:
            sender.let_go()

    def _queue(self, sender: Sender) -> None:
        """Let a connection wait for its turn, or begin it if it lacks little."""
        if sender.missing <= SMALL_BYTES:
            self._begin_turn(sender)
        else:
            self._held.add(sender)
            heappush(self._waiting, (sender.missing, next(self._serial), sender))
            sender.hold()

    def _give_turns(self) -> None:
        """Let those go on for whose requests there is room, at least one."""
        while self._waiting:
            missing, _, sender = self._waiting[0]
            if sender in self._held:
                if self._turns and self.held_bytes + self._promised + missing > self._max_bytes:
                    return
                self._held.discard(sender)
                self._begin_turn(sender)
                sender.let_go()
            heappop(self._waiting)

    def _begin_turn(self, sender: Sender) -> None:
        self._turns[sender] = self._timers.time() + self._timeout_s
        self._promised += sender.missing
        if self._timer is None:
            self._timer = self._timers.call_later(self._timeout_s, self._end_late_turns)

    def _end_turn(self, sender: Sender) -> None:
        del self._turns[sender]
        self._using.discard(sender)
        self._promised -= sender.missing

    def _end_late_turns(self) -> None:
        self._timer = None
        now = self._timers.time()
        late = [sender for sender, until in self._turns.items() if until <= now]
        for sender in sorted(late, key=_held_of, reverse=True):
            if sender not in self._turns:
                continue  # cutting off another one has ended the shortage
            if not self._held:
                del self._turns[sender]  # nobody waits, so it has another turn
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

    def _shed(self) -> None:
        """Cut off those that hold most, and those that make use of a turn only if the others are not enough."""
        self._on_shortage()
        by_size = sorted(self._senders, key=_held_of, reverse=True)
        for sender in sorted(by_size, key=self._using.__contains__):
            if self.held_bytes <= self._tight_bytes:
                return
            sender.cut_off(
                f"it held {sender.arrived} bytes of an unfinished request, more than others, when all of them held "
                f"{self.held_bytes}: the limit is max_partial_bytes = {self._max_bytes}"
            )


def _held_of(sender: Sender) -> int:
    return sender.arrived
