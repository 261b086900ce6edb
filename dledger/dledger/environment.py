"""Environment of a replica: time, timers, threads and randomness, which it needs besides disk and transport.

`Environment` is the interface, and `AsyncioEnvironment` the real implementation. The simulator has a deterministic one.
Code above this interface neither imports `time` nor starts threads, so that a run can be repeated from its seed.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from dledger.errors import BusyError
from dledger.sync_lane import NativeSyncs, Sync
from dledger_base import native_part
from dledger_base.invariants import invariant
from dledger_base.loop_holds import RESULTS, TIMERS, LoopHolds, LoopPart
from dledger_base.native_part import NativePart

T = TypeVar("T")

FLUSH: Final = "flush"
"""Lane of the log's writes and fdatasyncs: one thread, in order."""
HARD_STATE: Final = "hard_state"
"""Lane of term and vote: one thread of its own, so that a vote never waits behind a data sync."""
URGENT: Final = "urgent"
"""Lane of work that the group waits for, so that it never waits behind readers of old data. Two threads, no order.

It reads entries to apply and entries for a follower that lags behind, and repairs corrupt ranges.
"""
COLD: Final = "cold"
"""Lane of reads of old data that may touch the disk. Two threads, no order.

It is for clients, and for a broker's own work with messages.
"""
BACKGROUND: Final = "background"
"""Lane of work that nobody waits for: zero-filling, scrubs, snapshots, files of views. Two threads, no order."""
FOREIGN: Final = "foreign"
"""Lane of waits for other processes, which may last until they time out. Two threads, no order."""

UNORDERED_THREADS = 2
MAX_COLD_BACKLOG = 1024
"""Maximum number of works that wait or run in the cold lane. Another work is answered with `BusyError`."""
_SCHEDULING_OF_THREAD: Final = Path("/proc/thread-self/schedstat")


class Cancellable(Protocol):
    """Timer that can be cancelled before it fires."""

    def cancel(self) -> None:
        """Cancel the timer, so that its callback is not called. No error if it was called already."""


class Environment(Protocol):
    """Clock, timers, worker threads and randomness. All callbacks run on the event loop, one at a time."""

    def now(self) -> float:
        """Return monotonic seconds, of which only differences have a meaning."""

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970. It may jump; safety does not depend on it."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn of the event loop, in the order of the calls."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        """Call once, when at least `delay_s` seconds have passed."""

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` on a thread of `lane` and then `done(result or exception)` on the event loop.

        Lanes `flush` and `hard_state` run one work at a time, in the given order. Each other lane runs up to
        `UNORDERED_THREADS` at a time, in any order. `cold` answers `BusyError` beyond `MAX_COLD_BACKLOG`.
        """

    holds: LoopHolds
    """Meter that shows which work held the event loop, and for how long."""

    native: NativePart | None
    """The native part, which does some things faster, byte for byte as Python does.

    None if runs must be repeatable on any machine.
    """

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """Run a sync as `run_blocking(FLUSH, sync.run, done)` does; one at a time.

        If `sync.descriptors` are set, the sync may run without a Python thread, in parallel to other work of the lane.
        """

    def waited_for_core_s(self) -> float:
        """Return the total seconds for which the loop's thread was ready to run and had no core; 0 if unknown."""

    def random(self) -> random.Random:
        """Return the source of all randomness of the replica."""


async def called_back(
    call: Callable[[Callable[[T | BaseException], None]], None], *, unclaimed: Callable[[T], None] | None = None
) -> T:
    """Pass a callback to `call` and wait until it is called. Return its result, or raise it if it is an exception.

    A result that arrives when nobody waits any more is dropped, after a call of `unclaimed`, which may release it.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | BaseException) -> None:
        if future.done():
            if unclaimed is not None and not isinstance(result, BaseException):
                unclaimed(result)
        elif isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    call(done)
    return await future


async def slept(env: Environment, delay_s: float) -> None:
    """Wait for so many seconds of the environment's clock."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = env.call_later(delay_s, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        timer.cancel()


class AsyncioEnvironment:
    """Environment of a real process on an asyncio (or uvloop) event loop. Environments of one loop share `holds`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, holds: LoopHolds | None = None) -> None:
        self._loop = loop
        self.holds = holds or LoopHolds()
        self._timer_holds = self.holds.part(TIMERS)
        self._random = random.Random()
        results = self.holds.part(RESULTS)
        self._lanes = {
            FLUSH: _WorkLane(loop, results, FLUSH, threads=1, max_backlog=None),
            HARD_STATE: _WorkLane(loop, results, HARD_STATE, threads=1, max_backlog=None),
            URGENT: _WorkLane(loop, results, URGENT, threads=UNORDERED_THREADS, max_backlog=None),
            COLD: _WorkLane(loop, results, COLD, threads=UNORDERED_THREADS, max_backlog=MAX_COLD_BACKLOG),
            BACKGROUND: _WorkLane(loop, results, BACKGROUND, threads=UNORDERED_THREADS, max_backlog=None),
            FOREIGN: _WorkLane(loop, results, FOREIGN, threads=UNORDERED_THREADS, max_backlog=None),
        }
        self._native_syncs: NativeSyncs | None = None
        self.native = native_part.PART

    now = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        """Return the milliseconds of `time.time_ns`."""
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn, and count the time for the callback's module."""
        self._loop.call_soon(self.holds.run_for_its_part, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        """Set a timer on the event loop, and count its time for the part `TIMERS`."""
        return self._loop.call_later(delay_s, self._on_timer, callback)

    def _on_timer(self, callback: Callable[[], None]) -> None:
        with self._timer_holds:
            callback()

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run work on a thread of a lane. Threads start with their lane's first work."""
        self._lanes[lane].submit(work, done)

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """Run a sync on the native thread if possible, else on the flush lane."""
        if self.native is not None and (descriptors := sync.descriptors) is not None:
            if self._native_syncs is None:
                self._native_syncs = NativeSyncs(self._loop, self.native.SyncThread())
            self._native_syncs.submit(sync, descriptors, done)
        else:
            self._lanes[FLUSH].submit(sync.run, done)

    def waited_for_core_s(self) -> float:
        """Return the waiting time from Linux's scheduler statistics (see its documentation `scheduler/sched-stats`)."""
        try:
            return int(_SCHEDULING_OF_THREAD.read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def random(self) -> random.Random:
        """Return this environment's generator of random numbers."""
        return self._random

    def close(self) -> None:
        """Let all submitted work finish, then join the threads. Blocks until then.

        Results are still reported if the event loop continues to run, and dropped if it is closed.
        """
        if self._native_syncs is not None:
            self._native_syncs.close()
            self._native_syncs = None
        for lane in self._lanes.values():
            lane.close()


class _Work(Generic[T]):
    """One call on a worker thread, and the callback for its outcome."""

    __slots__ = ("_done", "_work")

    def __init__(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._work = work
        self._done = done

    def run(self) -> Callable[[], None]:
        """Do the work, and return a call that reports its outcome."""
        try:
            result = self._work()
        except BaseException as error:  # a thread can report any exception only here
            return partial(self._done, error)
        return partial(self._done, result)


class _WorkLane:
    """Threads that share one queue.

    A `SimpleQueue` and `call_soon_threadsafe` avoid the locks, conditions and futures of an executor, because every
    acknowledgement waits for this hand-over in both directions.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        results: LoopPart,
        name: str,
        *,
        threads: int,
        max_backlog: int | None,
    ) -> None:
        self._loop = loop
        self._result_holds = results
        self._max_backlog = max_backlog
        self._backlog = 0
        self._queue: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"dledger-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        self._is_started = False
        self._is_closed = False

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        invariant(not self._is_closed, "no work is submitted after close")
        if self._max_backlog is not None and self._backlog >= self._max_backlog:
            error = BusyError(f"{self._backlog} disk reads are waiting, which is the limit; try again later")
            self._loop.call_soon(self._report_refusal, partial(done, error))
            return
        if not self._is_started:
            self._is_started = True
            for thread in self._threads:
                thread.start()
        self._backlog += 1
        self._queue.put(_Work(work, done).run)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_started:
            for _ in self._threads:
                self._queue.put(None)
            for thread in self._threads:
                thread.join()

    def _run_thread(self) -> None:
        next_work = self._queue.get
        while (run := next_work()) is not None:
            self._run_one(run)
            del run  # an idle thread must not keep the last result alive

    def _run_one(self, run: Callable[[], Callable[[], None]]) -> None:
        report = run()
        try:
            self._loop.call_soon_threadsafe(self._report_result, report)
        except RuntimeError:
            invariant(self._loop.is_closed(), "only a closed loop refuses a callback")

    def _report_refusal(self, report: Callable[[], None]) -> None:
        with self._result_holds:
            report()

    def _report_result(self, report: Callable[[], None]) -> None:
        self._backlog -= 1
        with self._result_holds:
            report()
