"""An `Environment` without a clock of its own: time passes in `advance`, and work runs in `run_ready`."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from dledger.environment import FLUSH
from dledger.sync_lane import Sync
from dledger_base.loop_guard import as_worker
from dledger_base.loop_holds import LoopHolds
from dledger_base.native_part import NativePart

T = TypeVar("T")

START_MS = 1_700_000_000_000


class _Timer:
    """A callback that is due at a time."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeEnvironment:
    """In-memory `dledger.environment.Environment`. Everything runs on the caller's thread, in the order given."""

    native: NativePart | None = None
    """A test may set it, for one environment or for all."""

    def __init__(self, seed: int = 0) -> None:
        self.core_wait_s = 0.0
        """Time in seconds for which the event loop's thread has waited for a core so far."""
        self._now = 0.0
        self.holds = LoopHolds(self.now)
        self._ready: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self._random = random.Random(seed)

    def now(self) -> float:
        """Return the time in seconds. It starts at 0."""
        return self._now

    def wall_ms(self) -> int:
        """Return the wall clock in ms. It starts at `START_MS`."""
        return START_MS + int(self._now * 1000)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Add a callback to the callbacks that `run_ready` runs."""
        self._ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        """Have `advance` call back after a delay."""
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._now + delay_s, next(self._numbers), timer))
        return timer

    def run_blocking(self, _lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Have `run_ready` do the work and call `done` with its result or exception."""
        self._ready.append(partial(_run, work, done))

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """Have `run_ready` run a sync."""
        self.run_blocking(FLUSH, sync.run, done)

    def waited_for_core_s(self) -> float:
        """Return `core_wait_s`."""
        return self.core_wait_s

    def random(self) -> random.Random:
        """Return the random numbers of this environment, which follow from the seed."""
        return self._random

    def run_ready(self) -> None:
        """Run everything that is ready, and everything that becomes ready by that."""
        while self._ready:
            self._ready.popleft()()

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self._now + seconds
        self.run_ready()
        while self._timers and self._timers[0][0] <= end:
            self._fire_next()
            self.run_ready()
        self._now = end

    async def finish(self, awaitable: Awaitable[T]) -> T:
        """Run until an awaitable is done, and return its result. Time passes when nothing else is left to do."""
        task = asyncio.ensure_future(awaitable)
        while not task.done():
            self.run_ready()
            await asyncio.sleep(0)
            if not self._ready and not task.done() and self._timers:
                await asyncio.sleep(0)
                if not self._ready and not task.done():
                    self._fire_next()
        return task.result()

    def _fire_next(self) -> None:
        due, _, timer = heapq.heappop(self._timers)
        self._now = max(self._now, due)
        if timer.callback is not None:
            timer.callback()


def _run(work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
    try:
        with as_worker():
            result: T | BaseException = work()
    except Exception as error:
        result = error
    done(result)
