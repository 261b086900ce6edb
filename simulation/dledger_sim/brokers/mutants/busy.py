"""Bugs of operations that the log refuses because it is busy or full."""

# ruff: noqa: SLF001 - patches private names

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from dledger.errors import BusyError, LogError
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.offsets.buffer import OffsetBuffer, _Flight
from dledger_broker.features.retention.taken import Taken
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.overlay import Overlay
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_sim.brokers.schedules import questions
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- commits of offsets


def _drop_refused_commits(self: OffsetBuffer, flight: _Flight, error: LogError | None) -> None:
    if not isinstance(error, BusyError):
        _real_landed(self, flight, error)
        return
    self._flights.remove(flight)
    for waiter in flight.waiters:
        waiter(error)


_real_landed = OffsetBuffer._on_outcome

CATALOGUE.add(
    "busy-commit-dropped",
    "a commit that the busy log refused is proposed again, even if no client waits for its answer",
    (OffsetBuffer, "_on_outcome", _drop_refused_commits),
    schedule=questions.commit_while_the_log_is_busy,
)


def _forget_refused_commits(self: OffsetBuffer, flight: _Flight, error: LogError | None) -> None:
    _real_landed(self, flight, None if isinstance(error, BusyError) else error)


CATALOGUE.add(
    "busy-commit-acknowledged",
    "a commit that the busy log refused is acknowledged only after the log has accepted it",
    (OffsetBuffer, "_on_outcome", _forget_refused_commits),
)


def _keep_the_commits_only(self: OffsetBuffer, flight: _Flight, error: LogError | None) -> None:
    waiting = self._waiters
    _real_landed(self, flight, error)
    if isinstance(error, BusyError):
        self._waiters = waiting


CATALOGUE.add(
    "busy-commit-never-answered",
    "a commit that waits while the log is busy is answered in the end",
    (OffsetBuffer, "_on_outcome", _keep_the_commits_only),
)


def _wait_for_the_next_commit(self: OffsetBuffer, flight: _Flight, error: LogError | None) -> None:
    arm, self._timer_armed = self._timer_armed, True
    _real_landed(self, flight, error)
    self._timer_armed = arm


CATALOGUE.add(
    "busy-commit-not-proposed-again",
    "a commit that the busy log refused is proposed again without another request",
    (OffsetBuffer, "_on_outcome", _wait_for_the_next_commit),
)

# ---------------------------------------------------------------- changes


def _answer_done(self: Overlay, command: Command, done: Done, *, privileged: bool = False) -> None:
    def settled(error: LogError | None) -> None:
        done(None if isinstance(error, BusyError) and isinstance(command, DeleteTopic | DeleteGroup) else error)

    _real_stage_command(self, command, settled, privileged=privileged)


def _try_again_later(self: Overlay, command: Command, done: Done, *, privileged: bool = False) -> None:
    def settled(error: LogError | None) -> None:
        done(error)
        if isinstance(error, BusyError) and isinstance(command, _CHANGES):
            again = partial(_real_stage_command, self, command, _nobody, privileged=privileged)
            _refused_for_now.setdefault(self, []).append(again)

    for again in _refused_for_now.pop(self, []):
        again()
    _real_stage_command(self, command, settled, privileged=privileged)


def _nobody(_error: LogError | None) -> None:
    """Ignore the outcome: no client waits for it any more."""


_refused_for_now: WeakKeyDictionary[Overlay, list[Callable[[], None]]] = WeakKeyDictionary()
_CHANGES = (PutTopic, DeleteTopic, PutGroup, DeleteGroup)
_real_stage_command = Overlay.stage_command

CATALOGUE.add(
    "busy-deletion-acknowledged",
    "a deletion that the busy log refused is not acknowledged",
    (Overlay, "stage_command", _answer_done),
)

CATALOGUE.add(
    "refused-change-done-later",
    "a change that was refused as busy is never made",
    (Overlay, "stage_command", _try_again_later),
)


def _decide_although_refused(
    self: Trimming, handle: JobHandle, position: int, taken: Taken, error: LogError | None
) -> None:
    _real_decided(self, handle, position, taken, None if isinstance(error, BusyError) else error)


_real_decided = Trimming._decided

CATALOGUE.add(
    "busy-trim-goes-on",
    "the log is trimmed only once its first kept offsets are applied, even if the log was busy when they were proposed",
    (Trimming, "_decided", _decide_although_refused),
)
