"""Contexts that a replica attaches to its own proposals, and gets back when these are applied or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from dledger.errors import LogError, LogFullError, OutcomeUnknownError
from dledger_broker.kernel.queues import QueueState

QueueRun: TypeAlias = tuple[QueueState, int, bytes]
"""Records that follow one another in a queue: the queue, its offset after the last record, and their units
(`views.units`).
"""

Done: TypeAlias = Callable[[LogError | None], None]
"""Receives the outcome once: None after it was applied, otherwise the error. With `OutcomeUnknownError` it may be
applied later.
"""


UNKNOWN_CHANGE: Final = "leadership was lost before the change was committed; it may still take effect"


class StagedContext(Protocol):
    """The context of a staged unit.

    `runs` holds every record of the unit, so that the leader need not parse its own writes. A unit with records must
    have them. The runs of one queue are in the order of its offsets.
    """

    @property
    def runs(self) -> Sequence[QueueRun]:
        """The unit's records, empty for a unit of commands."""

    @property
    def extent(self) -> tuple[int, int]:
        """The log positions of the first record and after the last record. They are equal for a unit of commands."""

    def applied(self) -> None:
        """Note that the unit is committed and applied: its messages can be read, its commands are in the state."""

    def dropped(self, full: LogFullError | None) -> None:
        """Note that the unit is not applied here.

        With `full`, it is in no log for want of space. Without, its outcome is unknown (`StateMachine.dropped`).
        """


class CommandContext:
    """The context of a unit of commands. `done` receives the outcome."""

    __slots__ = ("_done",)

    runs: Sequence[QueueRun] = ()
    extent = (0, 0)

    def __init__(self, done: Done) -> None:
        self._done = done

    def applied(self) -> None:
        """Report the success to `done`."""
        self._done(None)

    def dropped(self, full: LogFullError | None) -> None:
        """Report the error to `done`."""
        self._done(full or OutcomeUnknownError(UNKNOWN_CHANGE))
