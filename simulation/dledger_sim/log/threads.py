"""Worker threads of simulated nodes: real ones, of which only who holds the baton runs.

A job runs on a thread of its own until it reaches the disk boundary.  There the seed may take the baton away: then the
event loops go on, and other jobs, until the job's next turn.  An event loop that calls the disk may be interrupted by
jobs of its own node in the same way.  So whatever shares memory with a worker meets it in every order, and a seed
repeats each of them: between two such points nothing else happens.

A lock of the code under test is one of these, too: who waits for it lets its holder go on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import TracebackType

from dledger.loop_guard import is_on_loop
from dledger_sim.log.violation import Violation

PACKAGES = ("dledger.", "dledger_broker.")
"""Whose locks know the baton."""
INTERRUPTED_SHARE = 0.3
"""Of the switches at the loop's own calls: these come often, and most find no job under way."""


class _Ended(BaseException):
    """The process of a job is gone; no code under test may catch it."""


class Job:
    """Blocking work of a node that has begun; `outcome` is its result or exception once it `has_ended`."""

    def __init__(self, threads: Threads, owner: str, work: Callable[[], object]) -> None:
        self.owner = owner
        self.work: Callable[[], object] = work
        self.outcome: object = None
        self.broken: Violation | None = None
        self.has_ended = False
        self.is_killed = False
        self.goes_straight = False
        """No switch any more: the process waits for it before it ends."""
        self.waits_for: SimLock | None = None
        self._threads = threads
        self._thread: _Thread | None = None

    def step(self) -> None:
        """Let it run until the baton is taken from it, or to its end.  Raises `Violation` if it broke a promise."""
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
        """Run it to its end."""
        self.goes_straight = True
        while not self.has_ended:
            if self.waits_for is not None and self.waits_for.is_locked:
                self.waits_for.press()
            self.step()

    def kill(self) -> None:
        """Its process is gone: nothing more of it takes effect."""
        self.is_killed = True
        while not self.has_ended:
            self.step()

    def pause(self) -> None:
        """Called by the job itself: give the baton back, and go on at its next turn."""
        assert self._thread is not None
        self._thread.wait()
        self.require_alive()

    def require_alive(self) -> None:
        """Called by the job itself: end it if its process is gone."""
        if self.is_killed:
            raise _Ended

    def run(self) -> None:
        """The job's thread begins here."""
        try:
            self.outcome = self.work()
        except _Ended:
            pass
        except Violation as broken:
            self.broken = broken
        except BaseException as error:  # whatever it was, a thread has nobody else to tell
            self.outcome = error
        self.has_ended = True


class _Thread:
    """One real thread, which runs jobs one after the other, each only while it has the baton."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        threading.Thread(target=self._serve, name="simulated", daemon=True).start()

    def run(self) -> None:
        """Hand the baton over and wait until it is back."""
        self._go.release()
        self._back.acquire()

    def wait(self) -> None:
        """On the thread itself: give the baton back and wait for it."""
        self._back.release()
        self._go.acquire()

    def stop(self) -> None:
        """End the thread, which has no job."""
        self.job = None
        self._go.release()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            if self.job is None:
                return
            self.job.run()
            self._back.release()


class Threads:
    """All worker threads of one run; `switch_share` is how often a disk call lets something else run."""

    def __init__(self, random: Random, switch_share: float) -> None:
        self.current: Job | None = None
        """The job that has the baton; None: an event loop has it, or the simulator."""
        self.under_way: dict[str, list[Job]] = {}
        """Jobs that have begun and not ended, by node."""
        self.pressing: SimLock | None = None
        """An event loop waits for it."""
        self.switches = 0
        self._random = random
        self._switch_share = switch_share
        self._idle: list[_Thread] = []

    def at_disk(self, owner: str) -> None:
        """Somebody of a node is about to call the disk."""
        job = self.current
        if job is not None:
            job.require_alive()
            pressed = self.pressing is not None and self.pressing.holder is job
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
        """A job that has not begun yet."""
        return Job(self, owner, work)

    def kill(self, owner: str) -> None:
        """A process is gone, and its threads."""
        for job in list(self.under_way.get(owner, ())):
            job.kill()

    def finish(self, owner: str) -> None:
        """Let everything that is under way come to its end: a process waits for its threads."""
        for job in list(self.under_way.get(owner, ())):
            job.finish()

    def borrow(self) -> _Thread:
        """A thread without a job."""
        return self._idle.pop() if self._idle else _Thread()

    def give_back(self, thread: _Thread) -> None:
        """It has no job any more."""
        thread.job = None
        self._idle.append(thread)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Locks that are made meanwhile know the baton; in the end no thread is left."""
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
        """Stands in for `threading.Lock`."""
        return SimLock(self)


class SimLock:
    """A lock between jobs and event loops."""

    def __init__(self, threads: Threads) -> None:
        self.holder: Job | None = None
        self._threads = threads
        self._locked = False

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait for it: a job gives the baton back, an event loop stands still while the holder goes on."""
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
        """Let go."""
        self._locked, holder, self.holder = False, self.holder, None
        if self._threads.pressing is self and holder is not None and not holder.is_killed:
            self._threads.pressing = None
            holder.pause()  # whoever waited has waited long enough

    def press(self) -> None:
        """Let the holder go on until it lets go."""
        holder = self.holder
        if holder is None or holder is self._threads.current:
            raise Violation("nobody waits for a lock that it holds", "a thread would stand still for good")
        if holder.waits_for is not None and holder.waits_for is not self and holder.waits_for.is_locked:
            holder.waits_for.press()
        before, self._threads.pressing = self._threads.pressing, self
        holder.step()
        self._threads.pressing = before

    @property
    def is_locked(self) -> bool:
        return self._locked

    def locked(self) -> bool:
        """See `threading.Lock.locked`."""
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
