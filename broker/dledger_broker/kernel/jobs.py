"""Leader jobs: what a leader does by itself, once for each time that it is ready, and only as long as it is.

A job works through the handle of its run. The handle ends with the readiness, before anything else is told of that:
from then on each call on it raises `NotLeaderError`, and what was to be called through it is not called any more. So a
job has nothing to clean up, and what a run leaves behind means nothing to the next one:

1. A leader searches for what it may trim.
2. It begins to hand over, and takes no proposals. The heir is not reached; it goes on leading, in the same term.
3. The search ends. Its run has ended, so nobody is told; the run that has begun meanwhile has decided anew, by what is
   applied and what is in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

from dledger.environment import Cancellable, Environment
from dledger.errors import NotLeaderError
from dledger.invariants import InvariantError, invariant
from dledger.log import Log
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.units import FixedRows, NewRecord, Told, UnitWriter

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
SETTLED_S: Final = 60.0
"""After so long without an exception the pause is the first one again."""

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Job(Protocol):
    """Something that a leader does by itself.

    What it decides follows from what is applied and from overlays, never from what an earlier run has noted. It begins
    no timer, no work and no proposal but through its handle.
    """

    @property
    def name(self) -> str:
        """Label of its metric; in the log, too."""

    def run(self, handle: JobHandle) -> None:
        """Begin: this node is ready as the leader, or an exception has ended the run before."""


class JobHandle:
    """One run of a job: everything that the job does goes through it, and ends with it."""

    def __init__(
        self,
        env: Environment,
        overlay: Overlay,
        log: Log,
        writer: UnitWriter,
        term: int,
        failed: Callable[[JobHandle, Exception], None],
    ) -> None:
        self.is_stopped = False
        """The run has ended."""
        self._env = env
        self._overlay = overlay
        self._log = log
        self._writer = writer
        self._term = term
        self._failed = failed

    def stop(self) -> None:
        """End the run: from now on every call raises `NotLeaderError`."""
        self.is_stopped = True

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        """Propose a command, see `Overlay.stage_command`.

        `done` is told even if the run has ended by then, for an entry of an overlay ends with it: wrap what belongs to
        the run into `guarded`.
        """
        self.require_running()
        self._overlay.stage_command(command, done, privileged=privileged)

    def write(
        self,
        records: Sequence[NewRecord],
        commands: Sequence[Command | FixedRows] = (),
        *,
        done: Told,
        privileged: bool = False,
    ) -> None:
        """Store a unit, see `LogWriter.write`. `done` is told even if the run has ended by then."""
        self.require_running()
        self._writer.write(records, commands, done=done, privileged=privileged)

    def trim(self, before_position: int) -> bool:
        """See `Log.trim`."""
        self.require_running()
        return self._log.trim(before_position)

    def hand_over(self, node_id: str) -> bool:
        """See `Log.hand_over`: if it begins, this run ends."""
        self.require_running()
        return self._log.hand_over(node_id)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after a while, unless the run has ended by then."""
        self.require_running()
        self._env.call_later(delay_s, self.guarded(callback))

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """See `Environment.run_blocking`; `done` is not called if the run has ended by then."""
        self.require_running()
        self._env.run_blocking(lane, work, self.guarded(done))

    def guarded(self, callback: Callable[P, None]) -> Callable[P, None]:
        """A callback that does nothing once the run has ended, and whose exceptions end the run."""

        def guard(*arguments: P.args, **named: P.kwargs) -> None:
            if self.is_stopped:
                return
            try:
                callback(*arguments, **named)
            except InvariantError:
                raise
            except Exception as error:
                self._failed(self, error)

        return guard

    def require_running(self) -> None:
        """Raise `NotLeaderError` once the run has ended: first of all, where a job does what its handle cannot."""
        if self.is_stopped:
            raise NotLeaderError(None, self._term, "this run of a job has ended")


class LeaderJobs:
    """All jobs of a node.

    An ordinary exception out of a job is logged and counted in `failures`, by the name of the job, and the job is begun
    anew after a pause, which grows from `FIRST_PAUSE_S` to `MAX_PAUSE_S`. `on_failure` is called then. An
    `InvariantError` goes on to whoever called, the event loop or the replica, and ends the node.
    """

    def __init__(self, env: Environment, overlay: Overlay) -> None:
        self.on_failure: Callable[[], None] = _nobody_is_told
        self._env = env
        self._overlay = overlay
        self._jobs: list[_Supervised] = []
        self._term: int | None = None
        self._is_closed = False

    def open(self, jobs: Sequence[Job], log: Log, writer: UnitWriter) -> None:
        """The node has started: from now on these jobs run whenever it is ready as the leader."""
        names = [job.name for job in jobs]
        invariant(len(set(names)) == len(names), "jobs have different names", names=names)
        self._jobs = [_Supervised(job, self, self._env, self._overlay, log, writer) for job in jobs]
        if self._term is not None:
            self.start(self._term)

    def start(self, term: int) -> None:
        """This node has become ready as the leader, and everything else knows."""
        self._term = term
        if not self._is_closed:
            for job in self._jobs:
                job.start(term)

    def stop(self) -> None:
        """This node is not ready any more, or in another term; nothing else knows yet, and no overlay is reset."""
        self._term = None
        for job in self._jobs:
            job.stop()

    def close(self) -> None:
        """The node stops: end all runs, and begin no more."""
        self._is_closed = True
        self.stop()

    @property
    def failures(self) -> Mapping[str, int]:
        """How often an exception has ended a run, by the name of the job."""
        return {job.name: job.failures for job in self._jobs}

    def handle_of(self, name: str) -> JobHandle | None:
        """The handle of a job's present run; None if it does not run."""
        return next((job.handle for job in self._jobs if job.name == name), None)


class _Supervised:
    """One job, its present run, and how it goes on after an exception."""

    def __init__(
        self, job: Job, jobs: LeaderJobs, env: Environment, overlay: Overlay, log: Log, writer: UnitWriter
    ) -> None:
        self.name = job.name
        self.failures = 0
        self.handle: JobHandle | None = None
        self._job = job
        self._jobs = jobs
        self._env = env
        self._overlay = overlay
        self._log = log
        self._writer = writer
        self._pause_s = FIRST_PAUSE_S
        self._began = 0.0
        self._again: Cancellable | None = None

    def start(self, term: int) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._begin(term)

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.stop()
            self.handle = None
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _begin(self, term: int) -> None:
        self._again = None
        self._began = self._env.now()
        failed = partial(self._failed, term)
        self.handle = handle = JobHandle(self._env, self._overlay, self._log, self._writer, term, failed)
        handle.guarded(self._job.run)(handle)

    def _failed(self, term: int, handle: JobHandle, error: Exception) -> None:
        if handle is not self.handle:
            return  # the run had ended when this came out of it
        self.stop()
        if self._env.now() - self._began >= SETTLED_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, MAX_PAUSE_S)
        self._again = self._env.call_later(pause_s, partial(self._begin, term))
        if isinstance(error, NotLeaderError):
            return  # the log knows already, this node is about to be told
        self.failures += 1
        _logger.error("event=job_failed job=%s error=%r again_s=%g", self.name, str(error), pause_s, exc_info=error)
        self._jobs.on_failure()


def _nobody_is_told() -> None:
    """What `LeaderJobs.on_failure` is unless somebody sets it."""
