"""A simulated node's clock, timers and threads."""

from __future__ import annotations

from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

from dledger.environment import FLUSH, HARD_STATE
from dledger.loop_guard import as_worker
from dledger.loop_holds import LoopHolds
from dledger.native_part import NativePart
from dledger.sync_lane import Sync
from dledger_sim.log.event_loop import SimEventLoop
from dledger_sim.log.scheduler import Scheduler, Timer
from dledger_sim.log.threads import Job, Threads

T = TypeVar("T")

CACHED_SHARE = 0.9
CACHED_READ_S = 0.002
"""Most works of the lanes without an order (reads of the cold lane, the writing of views) need the page cache only."""
STEP_S = 0.0005
"""Until a job goes on whose time has run out."""
STALL_SHARE = 0.05
STALL_S = 0.5
_NO_TIME = float
"""A clock that stands still: nothing holds a simulated loop, and looking at it costs nothing."""
"""Now and then a thread stands still for so long, at most."""
MOST_AHEAD_S = 1.0
"""Of a busy node's monotonic clock, where calls take time."""
WALL_EPOCH_MS = 1_700_000_000_000


class SimEnvironment:
    """One life of one node: after `kill` nothing that it scheduled happens any more.

    The node's monotonic clock runs at `clock_rate` seconds a second from `clock_offset_s` on; `call_cost_s` passes at
    every look at it, so that work in slices really comes in slices, until it is `MOST_AHEAD_S` ahead.  A pause
    (SIGSTOP) delays whatever falls into it to its end; the clock goes on.  Blocking work takes effect at a random
    moment between its start and its end, on lanes of one thread in order; with `threads` it is a job of `owner`, and
    comes to its end in several steps.
    `after_event` is called after everything that happened on the node's event loop, `escaped` with an exception that
    nobody caught there.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        after_event: Callable[[], None],
        escaped: Callable[[BaseException], None],
        *,
        clock_rate: float = 1.0,
        clock_offset_s: float = 0.0,
        call_cost_s: float = 0.0,
        threads: Threads | None = None,
        owner: str = "",
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._after_event = after_event
        self._escaped = escaped
        self._clock_rate = clock_rate
        self._clock_offset_s = clock_offset_s
        self._call_cost_s = call_cost_s
        self._threads = threads
        self._owner = owner
        self._clock = 0.0
        self.holds = LoopHolds(_NO_TIME)
        self.native: NativePart | None = None
        self._queues: dict[str, deque[Callable[[], None]]] = {FLUSH: deque(), HARD_STATE: deque()}
        self._busy: dict[str, bool] = {FLUSH: False, HARD_STATE: False}
        self.alive = True
        self._paused_until = 0.0
        self._missed: deque[Timer] = deque()
        self._unfinished: dict[int, Callable[[], object]] = {}
        self._works = 0
        self.wall_offset_ms: Callable[[], int] = lambda: 0
        self.sync_delay_s: Callable[[str], float] = lambda _lane: 0.0005
        self.cached_share = CACHED_SHARE
        self._loop = SimEventLoop(self, self._task_failed)
        self._as_loop = self._loop.as_loop
        self._task_error: BaseException | None = None

    @property
    def loop(self) -> SimEventLoop:
        """The event loop on which coroutines of this node run."""
        return self._loop

    def _task_failed(self, error: BaseException) -> None:
        if self.alive:
            self._task_error = error

    def kill(self) -> None:
        """The process is gone."""
        self.alive = False
        if self._threads is not None:
            self._threads.kill(self._owner)

    def close(self) -> None:
        """An orderly end: what was submitted to threads still takes effect, but nothing is told of it."""
        self.alive = False
        if self._threads is not None:
            self._threads.finish(self._owner)
        for work in self._unfinished.values():
            with as_worker(), suppress(Exception):  # as on a thread: nobody is there any more to be told
                work()

    def pause(self, until: float) -> None:
        """Nothing happens here before `until`.  A pause never ends early: what waits for its end would be overtaken."""
        if not self.paused:
            self._scheduler.at(until, self._wake)
        self._paused_until = max(self._paused_until, until)

    def _wake(self) -> None:
        """Everything that fell into the pause happens now, in its order."""
        if self.paused:
            self._scheduler.at(self._paused_until, self._wake)
            return
        while self._missed:
            missed = self._missed.popleft().callback
            if missed is not None:
                missed()

    @property
    def paused_until(self) -> float:
        """When the last pause ended, or ends."""
        return self._paused_until

    @property
    def paused(self) -> bool:
        """Whether a pause goes on."""
        return self._scheduler.now < self._paused_until

    @property
    def clock(self) -> float:
        """What `now` would tell; to look at it costs nothing."""
        return max(self._scheduler.now * self._clock_rate + self._clock_offset_s, self._clock)

    @property
    def ahead_s(self) -> float:
        """By how much its clock is ahead of simulated time: calls may cost time, and a turn makes many."""
        return self.clock - (self._scheduler.now * self._clock_rate + self._clock_offset_s)

    def now(self) -> float:
        """See `Environment.now`; never goes back."""
        real = self._scheduler.now * self._clock_rate + self._clock_offset_s
        self._clock = max(real, min(self._clock + self._call_cost_s, real + MOST_AHEAD_S))
        return self._clock

    def wall_ms(self) -> int:
        """See `Environment.wall_ms`."""
        return WALL_EPOCH_MS + int(self._scheduler.now * 1000) + self.wall_offset_ms()

    def waited_for_core_s(self) -> float:
        """See `Environment.waited_for_core_s`; a pause is none of it, for a paused process is not ready to run."""
        return 0.0

    def random(self) -> Random:
        """See `Environment.random`."""
        return self._random

    def call_soon(self, callback: Callable[[], object]) -> None:
        """See `Environment.call_soon`."""
        self._scheduler.at(self._scheduler.now, partial(self._fire, callback))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """See `Environment.call_later`; by the node's own clock."""
        scheduler = self._scheduler
        return scheduler.at(scheduler.now + delay_s / self._clock_rate, partial(self._fire, callback))

    def call_at(self, moment: float, callback: Callable[[], None]) -> Timer:
        """Call on the node's event loop at a moment of simulated time."""
        return self._scheduler.at(moment, partial(self._fire, callback))

    def _fire(self, callback: Callable[[], object]) -> None:
        if not self.alive:
            return
        if self._scheduler.now < self._paused_until:
            self._missed.append(self._scheduler.current)
            return
        _set_running_loop(self._as_loop)
        try:
            callback()
        except Exception as error:
            self._escaped(error)
        finally:
            _set_running_loop(None)
        if self._task_error is not None:
            unhandled, self._task_error = self._task_error, None
            self._escaped(unhandled)
        self._after_event()

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """See `Environment.run_blocking`."""
        self._works += 1
        number = self._works
        unordered = lane not in self._queues
        self._unfinished[number] = work

        def begin() -> None:
            total = self.sync_delay_s(lane)
            if unordered and self._random.random() < self.cached_share:
                total = self._random.random() * CACHED_READ_S
            start = self._scheduler.now
            end = start + total

            def finish(result: T | BaseException) -> None:
                if not unordered:
                    self._busy[lane] = False
                    self._next(lane)
                done(result)

            def act() -> None:
                result: T | BaseException
                del self._unfinished[number]
                if self._threads is not None:
                    self._turn(self._threads.begin(self._owner, work), end, finish)
                    return
                try:
                    with as_worker():
                        result = work()
                except Exception as error:
                    result = error
                self.call_at(end, partial(finish, result))

            self.call_at(start + self._random.random() * total, act)

        if unordered:
            begin()
        else:
            self._queues[lane].append(begin)
            self._next(lane)

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """See `Environment.run_sync`: what the native thread does, too, is the flush thread's here."""
        self.run_blocking(FLUSH, sync.run, done)

    def _turn(self, job: Job, end: float, finish: Callable[[Any], None]) -> None:
        """A job goes on for a step, and then again some time before its end, or soon if that has passed."""
        if not job.has_ended:
            job.step()
        now = self._scheduler.now
        if job.has_ended:
            self.call_at(end, partial(finish, job.outcome))
        else:
            longest = STALL_S if self._random.random() < STALL_SHARE else max(end - now, STEP_S)
            self.call_at(now + self._random.random() * longest, partial(self._turn, job, end, finish))

    def _next(self, lane: str) -> None:
        if not self._busy[lane] and self._queues[lane]:
            self._busy[lane] = True
            self._queues[lane].popleft()()
