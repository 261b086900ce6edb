"""A simulated node's clock, timers and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeVar

from dledger.environment import COLD, FLUSH, HARD_STATE
from dledger.sim.scheduler import Scheduler, Timer

T = TypeVar("T")


class SimEnvironment:
    """One life of one node: after `kill` nothing that it scheduled happens any more.

    A pause (SIGSTOP) delays whatever falls into it to its end; the clock goes on.  Blocking work takes effect at a
    random moment between its start and its end, on lanes of one thread in order.
    """

    def __init__(self, scheduler: Scheduler, random: Random, after_event: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._random = random
        self._after_event = after_event
        self._alive = True
        self._queues: dict[str, deque[Callable[[], None]]] = {FLUSH: deque(), HARD_STATE: deque()}
        self._busy: dict[str, bool] = {FLUSH: False, HARD_STATE: False}
        self.paused_until = 0.0
        self.wall_offset_ms = 0
        self.sync_delay_s: Callable[[], float] = lambda: 0.0005

    def kill(self) -> None:
        """The process is gone."""
        self._alive = False

    def now(self) -> float:
        return self._scheduler.now

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._scheduler.now * 1000) + self.wall_offset_ms

    def random(self) -> Random:
        return self._random

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)

        def fire() -> None:
            if not self._alive or timer.callback is None:
                return
            if self._scheduler.now < self.paused_until:
                self._scheduler.after(self.paused_until - self._scheduler.now, fire)
                return
            timer.callback()
            self._after_event()

        self._scheduler.after(delay_s, fire)
        return timer

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def begin() -> None:
            total = self.sync_delay_s() if lane != COLD else self._random.uniform(0, 0.002)
            effect = self._random.random() * total

            def act() -> None:
                result: T | BaseException
                try:
                    result = work()
                except Exception as error:
                    result = error

                def finish() -> None:
                    if lane != COLD:
                        self._busy[lane] = False
                        self._next(lane)
                    done(result)

                self.call_later(total - effect, finish)

            self.call_later(effect, act)

        if lane == COLD:
            begin()
        else:
            self._queues[lane].append(begin)
            self._next(lane)

    def _next(self, lane: str) -> None:
        if not self._busy[lane] and self._queues[lane]:
            self._busy[lane] = True
            self._queues[lane].popleft()()
