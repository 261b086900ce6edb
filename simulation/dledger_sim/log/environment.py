"""Clock, timers and threads of a simulated node."""

from __future__ import annotations

from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

from dledger.environment import FLUSH, HARD_STATE
from dledger.sync_lane import Sync
from dledger_base.loop_guard import as_worker
from dledger_base.loop_holds import LoopHolds
from dledger_base.native_part import NativePart
from dledger_sim.log.event_loop import SimEventLoop
from dledger_sim.log.scheduler import Scheduler, Timer
from dledger_sim.log.threads import Job, Threads

T = TypeVar("T")

CACHED_SHARE = 0.9
CACHED_READ_S = 0.002
"""Maximum duration in seconds of work that needs the page cache only.

That is most work on lanes without an order: cold reads, and writes of views.
"""
STEP_S = 0.0005
"""Maximum pause between two steps of a job whose time has run out, in seconds."""
HANG_STEP_S = 0.05
"""Interval at which a hung disk is asked again, in seconds."""
STALL_SHARE = 0.05
STALL_S = 0.5
_NO_TIME = float
"""Clock that does not move. Nothing blocks a simulated loop, so its hold times need no clock."""
"""`STALL_S` is the maximum time for which a worker thread stalls, in seconds.

A step stalls with probability `STALL_SHARE`.
"""
MOST_AHEAD_S = 1.0
"""Maximum lead of a busy node's monotonic clock over simulated time, in seconds, where calls take time."""
WALL_EPOCH_MS = 1_700_000_000_000


class SimEnvironment:
    """Environment of one life of a node. After `kill` nothing that it scheduled happens any more.

    The node's monotonic clock runs at `clock_rate` seconds a second from `clock_offset_s` on. Each reading of the clock
    costs `call_cost_s`, so that work in slices really is sliced, until the clock is `MOST_AHEAD_S` ahead. A pause
    (SIGSTOP) delays everything that falls into it to its end; the clock continues.

    Blocking work takes effect at a random moment between its start and its end. Lanes of one thread keep the order.
    With `threads` such a work is a job of `owner` and completes in several steps.

    `after_event` is called after every event on the node's event loop. `escaped` is called with each exception that was
    not caught there.
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
        self._on_escaped = escaped
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
        self._busy_since: dict[str, float] = {}
        self.alive = True
        self._paused_until = 0.0
        self._missed_timers: deque[Timer] = deque()
        self._unfinished_works: dict[int, Callable[[], object]] = {}
        self._work_count = 0
        self.wall_offset_ms: Callable[[], int] = lambda: 0
        self.sync_delay_s: Callable[[str], float] = lambda _lane: 0.0005
        self.hangs: Callable[[str], bool] = lambda _lane: False
        """Return whether the disk leaves the works of a lane unanswered now. Such works stop where they are."""
        self.cached_share = CACHED_SHARE
        self._loop = SimEventLoop(self, self._task_failed)
        self._as_loop = self._loop.as_loop
        self._task_error: BaseException | None = None

    @property
    def loop(self) -> SimEventLoop:
        """Event loop on which coroutines of this node run."""
        return self._loop

    def _task_failed(self, error: BaseException) -> None:
        if self.alive:
            self._task_error = error

    def kill(self) -> None:
        """End the process at once. Nothing more of it takes effect."""
        self.alive = False
        if self._threads is not None:
            self._threads.kill(self._owner)

    def close(self) -> None:
        """End the process in an orderly way.

        Work that was submitted to threads still takes effect, but no callback is called.
        """
        self.alive = False
        if self._threads is not None:
            self._threads.finish(self._owner)
        for work in self._unfinished_works.values():
            with as_worker(), suppress(Exception):  # as on a thread; after the end there is no callback for an error
                work()

    def pause(self, until: float) -> None:
        """Delay all events until `until`. A pause never ends early: events that wait for its end would be overtaken."""
        if not self.paused:
            self._scheduler.at(until, self._fire_missed)
        self._paused_until = max(self._paused_until, until)

    def _fire_missed(self) -> None:
        """Fire all events that fell into the pause, in order."""
        if self.paused:
            self._scheduler.at(self._paused_until, self._fire_missed)
            return
        while self._missed_timers:
            missed = self._missed_timers.popleft().callback
            if missed is not None:
                missed()

    @property
    def paused_until(self) -> float:
        """Moment at which the last pause ended or will end."""
        return self._paused_until

    @property
    def paused(self) -> bool:
        """True during a pause."""
        return self._scheduler.now < self._paused_until

    @property
    def clock(self) -> float:
        """Time that `now` would return. Reading it costs no simulated time."""
        return max(self._scheduler.now * self._clock_rate + self._clock_offset_s, self._clock)

    @property
    def ahead_s(self) -> float:
        """Lead of the node's clock over simulated time, in seconds.

        Calls may cost time, and a turn of the loop makes many.
        """
        return self.clock - (self._scheduler.now * self._clock_rate + self._clock_offset_s)

    def now(self) -> float:
        """Return the node's monotonic time, which never goes back."""
        real = self._scheduler.now * self._clock_rate + self._clock_offset_s
        self._clock = max(real, min(self._clock + self._call_cost_s, real + MOST_AHEAD_S))
        return self._clock

    def wall_ms(self) -> int:
        """Return the node's wall clock in milliseconds."""
        return WALL_EPOCH_MS + int(self._scheduler.now * 1000) + self.wall_offset_ms()

    def waited_for_core_s(self) -> float:
        """Return 0. A pause does not count as waiting for a core: a paused process is not ready to run."""
        return 0.0

    def random(self) -> Random:
        """Return the node's source of randomness."""
        return self._random

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call on the node's event loop now, after the current event."""
        self._scheduler.at(self._scheduler.now, partial(self._fire, callback))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call on the node's event loop after a delay by the node's own clock."""
        scheduler = self._scheduler
        return scheduler.at(scheduler.now + delay_s / self._clock_rate, partial(self._fire, callback))

    def call_at(self, moment: float, callback: Callable[[], None]) -> Timer:
        """Call on the node's event loop at a moment of simulated time."""
        return self._scheduler.at(moment, partial(self._fire, callback))

    def _fire(self, callback: Callable[[], object]) -> None:
        if not self.alive:
            return
        if self._scheduler.now < self._paused_until:
            self._missed_timers.append(self._scheduler.current)
            return
        _set_running_loop(self._as_loop)
        try:
            callback()
        except Exception as error:
            self._on_escaped(error)
        finally:
            _set_running_loop(None)
        if self._task_error is not None:
            unhandled, self._task_error = self._task_error, None
            self._on_escaped(unhandled)
        self._after_event()

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run blocking work on a lane, and call `done` on the event loop with its result or exception."""
        self._work_count += 1
        number = self._work_count
        unordered = lane not in self._queues
        self._unfinished_works[number] = work

        def begin() -> None:
            total = self.sync_delay_s(lane)
            if unordered and self._random.random() < self.cached_share:
                total = self._random.random() * CACHED_READ_S
            start = self._scheduler.now
            end = start + total

            def finish(result: T | BaseException) -> None:
                if not unordered:
                    self._busy[lane] = False
                    self._begin_next(lane)
                done(result)

            def act() -> None:
                result: T | BaseException
                if self.hangs(lane):
                    self.call_at(self._scheduler.now + HANG_STEP_S, act)
                    return
                del self._unfinished_works[number]
                if self._threads is not None:
                    self._step_job(lane, self._threads.begin(self._owner, work), end, finish)
                    return
                try:
                    with as_worker():
                        result = work()
                except Exception as error:
                    result = error
                self.call_at(max(end, self._scheduler.now), partial(finish, result))

            self.call_at(start + self._random.random() * total, act)

        if unordered:
            begin()
        else:
            self._queues[lane].append(begin)
            self._begin_next(lane)

    def busy_s(self, lane: str) -> float:
        """Return how long the current work of a lane of one thread has taken so far, in seconds."""
        return self.clock - self._busy_since[lane] if self._busy[lane] else 0.0

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """Run a sync on the flush lane. A real node runs part of it on the native thread."""
        self.run_blocking(FLUSH, sync.run, done)

    def _step_job(self, lane: str, job: Job, end: float, finish: Callable[[Any], None]) -> None:
        """Step a job, and schedule its next step.

        A step comes at a random moment before the job's end, or soon if that has passed.
        """
        now = self._scheduler.now
        if not job.has_ended:
            if self.hangs(lane):
                self.call_at(now + HANG_STEP_S, partial(self._step_job, lane, job, end, finish))
                return
            job.step()
        if job.has_ended:
            self.call_at(max(end, now), partial(finish, job.outcome))
        elif job.is_hung:
            self.call_at(now + HANG_STEP_S, partial(self._step_job, lane, job, end, finish))
        else:
            longest = STALL_S if self._random.random() < STALL_SHARE else max(end - now, STEP_S)
            self.call_at(now + self._random.random() * longest, partial(self._step_job, lane, job, end, finish))

    def _begin_next(self, lane: str) -> None:
        if not self._busy[lane] and self._queues[lane]:
            self._busy[lane] = True
            self._busy_since[lane] = self.clock
            self._queues[lane].popleft()()
