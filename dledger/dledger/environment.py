"""Time, timers, threads and randomness: what a replica needs besides disk and transport.

`Environment` is the boundary, `AsyncioEnvironment` the real thing; the simulator has a deterministic twin.  Code above
this boundary neither imports `time` nor starts threads, which is what makes a run repeatable from its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from dledger import native_part
from dledger.errors import BusyError
from dledger.invariants import invariant
from dledger.loop_holds import RESULTS, TIMERS, LoopHolds, LoopPart, module_of
from dledger.native_part import NativePart
from dledger.sync_lane import NativeSyncs, Sync

T = TypeVar("T")

FLUSH: Final = "flush"
"""Lane of the log's writes and fdatasyncs: one thread, in order."""
HARD_STATE: Final = "hard_state"
"""Lane of term and vote: one thread of its own, so that a vote never waits behind a data sync."""
URGENT: Final = "urgent"
"""Lane of what the group waits for, so that it never waits behind readers of old data: entries to apply, to catch a
follower up with, and to heal a range; two threads, no order."""
COLD: Final = "cold"
"""Lane of reads of old data that may touch the disk, for clients and for what a broker does by itself with messages:
two threads, no order."""
BACKGROUND: Final = "background"
"""Lane of what nobody waits for, as zero-filling, scrubs, snapshots and views' files: two threads, no order."""
FOREIGN: Final = "foreign"
"""Lane of waits for other processes, which may not answer until their time is over: two threads, no order."""

UNORDERED_THREADS = 2
MAX_COLD_BACKLOG = 1024
"""Works that may wait or run in the cold lane; one more is answered with `BusyError`."""
CLOCK_OFFSET_VARIABLE = "DLEDGER_CLOCK_OFFSET_FILE"
CLOCK_OFFSET_REREAD_S = 0.1
_SCHEDULING_OF_THREAD: Final = Path("/proc/thread-self/schedstat")


class Cancellable(Protocol):
    """A timer that has not fired yet."""

    def cancel(self) -> None:
        """The callback will not be called; no error if it was already."""


class Environment(Protocol):
    """Clock, timers, worker threads and randomness.  All callbacks run on the event loop, one at a time."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean something."""

    def wall_ms(self) -> int:
        """Wall clock, milliseconds since 1970.  May jump; nothing safe rests on it."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn of the event loop, in the order of the calls."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        """Call once, not before `delay_s` seconds have passed."""

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` on a thread of `lane` and then `done(result or exception)` on the event loop.

        Lanes `flush` and `hard_state` run one work at a time in the order given.  The others run up to
        `UNORDERED_THREADS` each at a time in any order; `cold` answers `BusyError` beyond `MAX_COLD_BACKLOG`.
        """

    holds: LoopHolds
    """Tells what held the event loop, and for how long."""

    native: NativePart | None
    """What does some things faster, to the byte as Python does; None where runs are to be repeatable on any machine."""

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """As `run_blocking(FLUSH, sync.run, done)`; one at a time.

        Where `sync.descriptors` are all that there is to do, it may be done without a thread of Python's, beside other
        work of the lane.
        """

    def waited_for_core_s(self) -> float:
        """For how long, in all, the event loop's thread was ready to run and had no core; 0 where nobody counts it."""

    def random(self) -> random.Random:
        """The source of all randomness of the replica."""


async def called_back(
    call: Callable[[Callable[[T | BaseException], None]], None], *, unclaimed: Callable[[T], None] | None = None
) -> T:
    """Hand a callback to `call` and wait until it is called: return its result, or raise it if it is an exception.

    What comes when nobody waits any more is dropped; a result that has to be given back is passed to `unclaimed`.
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
    """The environment of a real process on an asyncio (or uvloop) event loop.

    If the environment variable `DLEDGER_CLOCK_OFFSET_FILE` names a file when this is created, the decimal number in
    it is added to `wall_ms`; it is read again at most every 100 ms, and a missing or unreadable number keeps the last
    one.  Fault tests shift a node's clock that way.  Environments of one loop share `holds`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, holds: LoopHolds | None = None) -> None:
        self._loop = loop
        self.holds = holds or LoopHolds()
        self._timers = self.holds.part(TIMERS)
        self._random = random.Random()
        path = os.environ.get(CLOCK_OFFSET_VARIABLE)
        self._clock_offset = _ClockOffset(Path(path)) if path else None
        results = self.holds.part(RESULTS)
        self._lanes = {
            FLUSH: _WorkLane(loop, results, FLUSH, threads=1, max_backlog=None),
            HARD_STATE: _WorkLane(loop, results, HARD_STATE, threads=1, max_backlog=None),
            URGENT: _WorkLane(loop, results, URGENT, threads=UNORDERED_THREADS, max_backlog=None),
            COLD: _WorkLane(loop, results, COLD, threads=UNORDERED_THREADS, max_backlog=MAX_COLD_BACKLOG),
            BACKGROUND: _WorkLane(loop, results, BACKGROUND, threads=UNORDERED_THREADS, max_backlog=None),
            FOREIGN: _WorkLane(loop, results, FOREIGN, threads=UNORDERED_THREADS, max_backlog=None),
        }
        self._syncs: NativeSyncs | None = None
        self.native = native_part.PART

    def now(self) -> float:
        """See `Environment.now`."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """See `Environment.wall_ms`."""
        wall_ms = time.time_ns() // 1_000_000
        return wall_ms if self._clock_offset is None else wall_ms + self._clock_offset.read_ms(time.monotonic())

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See `Environment.call_soon`."""
        self._loop.call_soon(self._at_turn_end, callback)

    def _at_turn_end(self, callback: Callable[[], None]) -> None:
        with self.holds.part(module_of(callback)):
            callback()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable:
        """See `Environment.call_later`."""
        return self._loop.call_later(delay_s, self._on_timer, callback)

    def _on_timer(self, callback: Callable[[], None]) -> None:
        with self._timers:
            callback()

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """See `Environment.run_blocking`; threads start with their lane's first work."""
        self._lanes[lane].submit(work, done)

    def run_sync(self, sync: Sync, done: Callable[[BaseException | None], None]) -> None:
        """See `Environment.run_sync`; the native part does it where there is one."""
        if self.native is not None and (descriptors := sync.descriptors) is not None:
            if self._syncs is None:
                self._syncs = NativeSyncs(self._loop, self.native.SyncThread())
            self._syncs.submit(sync, descriptors, done)
        else:
            self.run_blocking(FLUSH, sync.run, done)

    def waited_for_core_s(self) -> float:
        """See `Environment.waited_for_core_s`; Linux counts it (its documentation's `scheduler/sched-stats`)."""
        try:
            return int(_SCHEDULING_OF_THREAD.read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def random(self) -> random.Random:
        """See `Environment.random`."""
        return self._random

    def close(self) -> None:
        """Let every work that was submitted finish, then join the threads; blocks that long.

        What finished is still reported if the event loop goes on running, and dropped if it is closed.
        """
        if self._syncs is not None:
            self._syncs.close()
            self._syncs = None
        for lane in self._lanes.values():
            lane.close()


class _Work(Generic[T]):
    """One call on a worker thread and where its outcome goes."""

    __slots__ = ("_done", "_work")

    def __init__(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._work = work
        self._done = done

    def run(self) -> Callable[[], None]:
        """Do the work; what is returned reports its outcome."""
        try:
            result = self._work()
        except BaseException as error:  # whatever it was, a thread has nobody else to tell
            return partial(self._done, error)
        return partial(self._done, result)


class _WorkLane:
    """Threads that share one queue.

    A `SimpleQueue` and `call_soon_threadsafe` do without the locks, conditions and futures of an executor: every
    acknowledgement waits for this hand-over, there and back.
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
        self._results = results
        self._max_backlog = max_backlog
        self._backlog = 0
        self._queue: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"dledger-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        self._started = False
        self._closed = False

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        invariant(not self._closed, "no work is submitted after close")
        if self._max_backlog is not None and self._backlog >= self._max_backlog:
            error = BusyError(f"{self._backlog} disk reads are waiting, which is the limit; try again later")
            self._loop.call_soon(self._refuse, partial(done, error))
            return
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        self._backlog += 1
        self._queue.put(_Work(work, done).run)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._started:
            for _ in self._threads:
                self._queue.put(None)
            for thread in self._threads:
                thread.join()

    def _serve(self) -> None:
        take = self._queue.get
        while (run := take()) is not None:
            self._serve_one(run)
            del run  # an idle thread must not keep the last result alive

    def _serve_one(self, run: Callable[[], Callable[[], None]]) -> None:
        report = run()
        try:
            self._loop.call_soon_threadsafe(self._finish, report)
        except RuntimeError:
            invariant(self._loop.is_closed(), "only a closed loop refuses a callback")

    def _refuse(self, report: Callable[[], None]) -> None:
        with self._results:
            report()

    def _finish(self, report: Callable[[], None]) -> None:
        self._backlog -= 1
        with self._results:
            report()


class _ClockOffset:
    """The number in a file, read at most every `CLOCK_OFFSET_REREAD_S`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_ms = 0
        self._read_at: float | None = None

    def read_ms(self, now: float) -> int:
        if self._read_at is None or now - self._read_at >= CLOCK_OFFSET_REREAD_S:
            self._read_at = now
            try:
                self._offset_ms = int(self._path.read_text(encoding="ascii"))
            except (OSError, ValueError):
                pass
        return self._offset_ms
