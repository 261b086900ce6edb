"""Contexts that a replica attaches to its own proposals, and gets back when they are applied or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from dledger.errors import LogError, LogFullError, OutcomeUnknownError
from dledger_broker.kernel.queues import QueueState

QueueRun: TypeAlias = tuple[QueueState, int, bytes]
"""Records that follow one another in a queue: its offset after the last, their units (`views.units`)."""

Done: TypeAlias = Callable[[LogError | None], None]
"""Told the outcome once: None after it was applied, otherwise why not (`OutcomeUnknownError`: it may be, some day)."""


UNKNOWN_CHANGE: Final = "leadership was lost before the change was committed; it may still take effect"


class StagedContext(Protocol):
    """The context of a staged unit.

    `runs` holds every record of the unit, so that the leader need not parse what it wrote; a unit with records must
    not be staged without them. The runs of one queue stand in the order of its offsets.
    """

    @property
    def runs(self) -> Sequence[QueueRun]:
        """The unit's records; empty for a unit of commands."""

    @property
    def extent(self) -> tuple[int, int]:
        """The log positions of the first record and after the last one; equal for a unit of commands."""

    def applied(self) -> None:
        """The unit is committed and applied: its messages can be read, its commands are in the state."""

    def dropped(self, full: LogFullError | None) -> None:
        """The unit is not applied here: in no log for want of space, or of unknown outcome (`StateMachine.dropped`)."""


class CommandContext:
    """The context of a unit of commands; `done` is told the outcome."""

    __slots__ = ("_done",)

    runs: Sequence[QueueRun] = ()
    extent = (0, 0)

    def __init__(self, done: Done) -> None:
        self._done = done

    def applied(self) -> None:
        """See `StagedContext.applied`."""
        self._done(None)

    def dropped(self, full: LogFullError | None) -> None:
        """See `StagedContext.dropped`."""
        self._done(full or OutcomeUnknownError(UNKNOWN_CHANGE))
