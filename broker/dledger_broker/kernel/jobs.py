"""Leader jobs: work that a leader does by itself. A job has a run for each time that the leader is ready.

A job works through the handle of its run. When the readiness ends, the handle ends first, and then other code is
notified. From then on each call of the handle raises `NotLeaderError`, and callbacks that were requested through it are
not called any more. A job therefore has nothing to clean up, and no result of a run can reach the next run. Example:

1. A leader searches for the part of the log that it may trim.
2. It begins to hand over, and takes no proposals. The target of the transfer is not reached, so it keeps leading, in
   the same term.
3. The search ends. Its run has ended, so its result is dropped. The next run has begun meanwhile and has decided anew,
   by the applied state and the changes in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

from dledger.environment import Cancellable, Environment
from dledger.errors import NotLeaderError
from dledger.log import Log
from dledger_base.invariants import InvariantError, invariant
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.units import FixedRows, NewRecord, Told, UnitWriter

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
SETTLED_S: Final = 60.0
"""Time in seconds without an exception after which the next pause is `FIRST_PAUSE_S` again."""

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Job(Protocol):
    """Work that a leader does by itself.

    Its decisions follow from the applied state and from overlays, never from notes of an earlier run. It begins timers,
    work and proposals only through its handle.
    """

    @property
    def name(self) -> str:
        """Label of its metric, also used in the log."""

    def run(self, handle: JobHandle) -> None:
        """Begin a run, because this node is ready as the leader, or because an exception has ended the last run."""


class JobHandle:
    """One run of a job. Everything that the job does goes through the handle and ends with it."""

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
        """True once the run has ended."""
        self._env = env
        self._overlay = overlay
        self._log = log
        self._writer = writer
        self._term = term
        self._failed = failed

    def stop(self) -> None:
        """End the run. From now on every call raises `NotLeaderError`."""
        self.is_stopped = True

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        """Propose a command, see `Overlay.stage_command`.

        `done` is called even if the run has ended by then, so that it can remove what was put into an overlay. Wrap
        other code in `guarded`.
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
        """Store a unit, see `LogWriter.write`. `done` is called even if the run has ended by then."""
        self.require_running()
        self._writer.write(records, commands, done=done, privileged=privileged)

    def trim(self, before_position: int) -> bool:
        """Trim the log below a position, see `Log.trim`."""
        self.require_running()
        return self._log.trim(before_position)

    def hand_over(self, node_id: str) -> bool:
        """Hand the leadership over, see `Log.hand_over`. If that begins, this run ends."""
        self.require_running()
        return self._log.hand_over(node_id)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after a delay, unless the run has ended by then."""
        self.require_running()
        self._env.call_later(delay_s, self.guarded(callback))

    def run_blocking(self, lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run blocking work, see `Environment.run_blocking`. `done` is not called if the run has ended by then."""
        self.require_running()
        self._env.run_blocking(lane, work, self.guarded(done))

    def guarded(self, callback: Callable[P, None]) -> Callable[P, None]:
        """Return a callback that does nothing once the run has ended. Its exceptions end the run."""

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
        """Raise `NotLeaderError` once the run has ended. A job calls this before it acts without its handle."""
        if self.is_stopped:
            raise NotLeaderError(None, self._term, "this run of a job has ended")


class LeaderJobs:
    """All jobs of a node.

    An ordinary exception of a job is logged and counted in `failures`, by the name of the job, and `on_failure` is
    called. The job begins again after a pause, which grows from `FIRST_PAUSE_S` to `MAX_PAUSE_S`. An `InvariantError`
    is raised to the caller, which is the event loop or the replica, and ends the node.
    """

    def __init__(self, env: Environment, overlay: Overlay) -> None:
        self.on_failure: Callable[[], None] = _ignore_failure
        self._env = env
        self._overlay = overlay
        self._jobs: list[_Supervised] = []
        self._term: int | None = None
        self._is_closed = False

    def open(self, jobs: Sequence[Job], log: Log, writer: UnitWriter) -> None:
        """Run these jobs from now on, whenever this node is ready as the leader. Called when the node has started."""
        names = [job.name for job in jobs]
        invariant(len(set(names)) == len(names), "jobs have different names", names=names)
        self._jobs = [_Supervised(job, self, self._env, self._overlay, log, writer) for job in jobs]
        if self._term is not None:
            self.start(self._term)

    def start(self, term: int) -> None:
        """Start the jobs, because this node is ready as the leader. All other code has been notified before."""
        self._term = term
        if not self._is_closed:
            for job in self._jobs:
                job.start(term)

    def stop(self) -> None:
        """End the runs, because this node is not ready any more, or is ready in another term. Called before any other
        code is notified, and before any overlay is reset.
        """
        self._term = None
        for job in self._jobs:
            job.stop()

    def close(self) -> None:
        """End all runs, and begin no more, because the node stops."""
        self._is_closed = True
        self.stop()

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of exceptions that have ended a run, by the name of the job."""
        return {job.name: job.failures for job in self._jobs}

    def handle_of(self, name: str) -> JobHandle | None:
        """Return the handle of a job's present run, None if it does not run."""
        return next((job.handle for job in self._jobs if job.name == name), None)


class _Supervised:
    """One job with its present run. Begins the next run after an exception."""

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
        self._restart_timer: Cancellable | None = None

    def start(self, term: int) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._begin(term)

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.stop()
            self.handle = None
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None

    def _begin(self, term: int) -> None:
        self._restart_timer = None
        self._began = self._env.now()
        failed = partial(self._failed, term)
        self.handle = handle = JobHandle(self._env, self._overlay, self._log, self._writer, term, failed)
        handle.guarded(self._job.run)(handle)

    def _failed(self, term: int, handle: JobHandle, error: Exception) -> None:
        if handle is not self.handle:
            return  # the run had ended before this exception
        self.stop()
        if self._env.now() - self._began >= SETTLED_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, MAX_PAUSE_S)
        self._restart_timer = self._env.call_later(pause_s, partial(self._begin, term))
        if isinstance(error, NotLeaderError):
            return  # the log has noticed this already, and is about to notify this node
        self.failures += 1
        _logger.error("event=job_failed job=%s error=%r again_s=%g", self.name, str(error), pause_s, exc_info=error)
        self._jobs.on_failure()


def _ignore_failure() -> None:
    """Do nothing: the default of `LeaderJobs.on_failure`."""
