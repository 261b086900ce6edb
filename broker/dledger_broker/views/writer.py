"""The worker that changes view files: one job at a time, in the order given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError
from dledger_base.loop_holds import VIEWS

T = TypeVar("T")

BUSY_RETRY_S = 0.05
"""Time in seconds after which a job tries again to enter a full lane."""


class ViewWriter:
    """Runner of jobs on the background lane, never two at once, so that they need no locks between them.

    Jobs may raise anything. `done` gets the result or the exception on the event loop.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._taking = env.holds.part(VIEWS)
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = False
        self._abandoned = False

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` after all jobs submitted before."""
        if self._abandoned:
            return
        self._jobs.append(partial(self._start, work, done))
        if not self._running:
            self._next()

    def abandon(self) -> None:
        """Begin no further job and report no results. Jobs that wait, or are submitted from now on, are dropped."""
        self._abandoned = True
        self._jobs.clear()

    def _next(self) -> None:
        self._running = bool(self._jobs)
        if self._jobs:
            self._jobs.popleft()()

    def _start(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        if self._abandoned:
            return

        def finish(result: T | BaseException) -> None:
            if self._abandoned:
                return
            if isinstance(result, BusyError):
                self._env.call_later(BUSY_RETRY_S, partial(self._start, work, done))
                return
            with self._taking:
                try:
                    done(result)
                finally:
                    self._next()

        self._env.run_blocking(BACKGROUND, work, finish)
