"""Worker threads of simulated nodes. They are real threads, but only the thread with the baton runs.

A job runs on its own thread until it reaches the disk boundary. There the seed may take the baton away. Then the event
loops and other jobs run until the job's next turn. An event loop that calls the disk may be interrupted by jobs of its
own node in the same way. So code that shares memory with a worker meets that worker in every order. A seed repeats each
order exactly: between two such points nothing else happens.

A lock of the code under test is a switching point too: a thread that waits for a lock lets the holder run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import TracebackType

from dledger_base.loop_guard import is_on_loop
from dledger_sim.log.violation import Violation

PACKAGES = ("dledger.", "dledger_broker.")
"""Prefixes of the packages whose locks use the baton."""
INTERRUPTED_SHARE = 0.3
"""Factor for switches at the event loop's own disk calls. Such calls are frequent, and most find no job under way."""


class _Ended(BaseException):
    """The process of a job has ended. No code under test may catch this."""


class Job:
    """Blocking work of a node. `outcome` is its result or exception once it `has_ended`."""

    def __init__(self, threads: Threads, owner: str, work: Callable[[], object]) -> None:
        self.owner = owner
        self.work: Callable[[], object] = work
        self.outcome: object = None
        self.broken: Violation | None = None
        self.has_ended = False
        self.is_killed = False
        self.goes_straight = False
        """True if there are no switches any more: the process waits for the job before it ends."""
        self.is_hung = False
        """True while the disk leaves the job's call unanswered."""
        self.waits_for: SimLock | None = None
        self._threads = threads
        self._thread: _Thread | None = None

    def step(self) -> None:
        """Let the job run until it loses the baton or ends. Raises `Violation` if the job broke a promise."""
        threads = self._threads
        if self._thread is None:
            self._thread = threads.borrow()
            self._thread.job = self
            threads.under_way.setdefault(self.owner, []).append(self)
        before, threads.current = threads.current, self
        self._thread.run()
        threads.current = before
        if self.has_ended:
            threads.under_way[self.owner].remove(self)
            threads.give_back(self._thread)
        if self.broken is not None:
            raise self.broken

    def finish(self) -> None:
        """Run the job to its end."""
        self.goes_straight = True
        while not self.has_ended:
            if self.waits_for is not None and self.waits_for.is_locked:
                self.waits_for.press()
            self.step()

    def kill(self) -> None:
        """End the job because its process is gone. Nothing more of the job takes effect."""
        self.is_killed = True
        while not self.has_ended:
            self.step()

    def pause(self) -> None:
        """Give the baton back, and continue at the next turn. The job itself calls this."""
        assert self._thread is not None
        self._thread.wait()
        self.require_alive()

    def require_alive(self) -> None:
        """End the job if its process is gone. The job itself calls this."""
        if self.is_killed:
            raise _Ended

    def run(self) -> None:
        """Run the work. The job's thread begins here."""
        try:
            self.outcome = self.work()
        except _Ended:
            pass
        except Violation as broken:
            self.broken = broken
        except BaseException as error:  # a thread has no other way to report any kind of exception
            self.outcome = error
        self.has_ended = True


class _Thread:
    """Real thread that runs jobs one after another, only while it has the baton."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self._run_lock = threading.Lock()
        self._return_lock = threading.Lock()
        self._run_lock.acquire()
        self._return_lock.acquire()
        threading.Thread(target=self._serve, name="simulated", daemon=True).start()

    def run(self) -> None:
        """Pass the baton on and wait until it is back."""
        self._run_lock.release()
        self._return_lock.acquire()

    def wait(self) -> None:
        """Give the baton back and wait for it. The thread itself calls this."""
        self._return_lock.release()
        self._run_lock.acquire()

    def stop(self) -> None:
        """End the thread, which has no job."""
        self.job = None
        self._run_lock.release()

    def _serve(self) -> None:
        while True:
            self._run_lock.acquire()
            if self.job is None:
                return
            self.job.run()
            self._return_lock.release()


class Threads:
    """Worker threads of a run. `switch_share` is the probability that a disk call lets something else run."""

    def __init__(
        self,
        random: Random,
        switch_share: float,
        hangs: Callable[[str, str, str], bool] = lambda _owner, _operation, _path: False,
    ) -> None:
        """Prepare the threads.

        `hangs(node, operation, path)` returns whether the disk leaves this call of a job unanswered now.
        """
        self.current: Job | None = None
        """Job with the baton. None means that an event loop or the simulator has it."""
        self.under_way: dict[str, list[Job]] = {}
        """Jobs that have begun and not ended, by node."""
        self.pressing: SimLock | None = None
        """Lock for which an event loop waits, or None."""
        self.switches = 0
        self._random = random
        self._switch_share = switch_share
        self._hangs = hangs
        self._idle: list[_Thread] = []

    def at_disk(self, owner: str, operation: str, path: str) -> None:
        """Handle a disk call of a node: the job may hang or lose the baton, or another job of the node may step."""
        job = self.current
        if job is not None:
            job.require_alive()
            pressed = self.pressing is not None and self.pressing.holder is job
            while not (job.goes_straight or pressed) and self._hangs(owner, operation, path):
                job.is_hung = True
                job.pause()
                pressed = self.pressing is not None and self.pressing.holder is job
            job.is_hung = False
            if not (job.goes_straight or pressed) and self._random.random() < self._switch_share:
                self.switches += 1
                job.pause()
        elif (
            (jobs := self.under_way.get(owner))
            and is_on_loop()
            and self._random.random() < self._switch_share * INTERRUPTED_SHARE
        ):
            self.switches += 1
            self._random.choice(jobs).step()

    def begin(self, owner: str, work: Callable[[], object]) -> Job:
        """Return a job that has not begun yet."""
        return Job(self, owner, work)

    def kill(self, owner: str) -> None:
        """Kill all jobs of a process."""
        for job in list(self.under_way.get(owner, ())):
            job.kill()

    def finish(self, owner: str) -> None:
        """Let all jobs under way come to their end: a process waits for its threads."""
        for job in list(self.under_way.get(owner, ())):
            job.finish()

    def borrow(self) -> _Thread:
        """Return a thread without a job."""
        return self._idle.pop() if self._idle else _Thread()

    def give_back(self, thread: _Thread) -> None:
        """Take a thread back whose job has ended."""
        thread.job = None
        self._idle.append(thread)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make all new locks use the baton inside this context. No thread is left at the end."""
        modules = [
            module
            for name, module in list(sys.modules.items())
            if name.startswith(PACKAGES) and vars(module).get("Lock") is threading.Lock
        ]
        for module in modules:
            vars(module)["Lock"] = self.make_lock
        try:
            yield
        finally:
            for module in modules:
                vars(module)["Lock"] = threading.Lock
            for owner in self.under_way:
                self.kill(owner)
            while self._idle:
                self._idle.pop().stop()

    def make_lock(self) -> SimLock:
        """Return a lock that stands in for `threading.Lock`."""
        return SimLock(self)


class SimLock:
    """Lock between jobs and event loops."""

    def __init__(self, threads: Threads) -> None:
        self.holder: Job | None = None
        self._threads = threads
        self._locked = False

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait for the lock. A job gives the baton back; an event loop blocks while the holder runs."""
        job = self._threads.current
        while self._locked:
            if not blocking:
                return False
            if job is None:
                self.press()
            else:
                job.waits_for = self
                job.pause()
        if job is not None:
            job.waits_for = None
        self._locked, self.holder = True, job
        return True

    def release(self) -> None:
        """Release the lock."""
        self._locked, holder, self.holder = False, self.holder, None
        if self._threads.pressing is self and holder is not None and not holder.is_killed:
            self._threads.pressing = None
            holder.pause()  # let the event loop continue that waited for this lock

    def press(self) -> None:
        """Let the holder run until it releases the lock."""
        holder = self.holder
        if holder is None or holder is self._threads.current:
            raise Violation("no thread waits for a lock that it holds", "a thread would stand still for good")
        if holder.waits_for is not None and holder.waits_for is not self and holder.waits_for.is_locked:
            holder.waits_for.press()
        before, self._threads.pressing = self._threads.pressing, self
        holder.step()
        self._threads.pressing = before

    @property
    def is_locked(self) -> bool:
        return self._locked

    def locked(self) -> bool:
        """Return whether the lock is held."""
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
