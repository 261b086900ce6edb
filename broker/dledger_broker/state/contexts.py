"""What a replica attaches to its own proposals, and gets back when they are applied or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from dledger.errors import LogError, OutcomeUnknownError
from dledger_broker.state.tables import QueueState

StagedRecord: TypeAlias = tuple[QueueState, int, int, int, int]
"""A record as the leader encoded it: its queue, queue offset, physical offset, size in bytes and tag code."""

Done: TypeAlias = Callable[[LogError | None], None]
"""Told the outcome once: None after it was applied, otherwise why not (`OutcomeUnknownError`: it may be, some day)."""


class StagedContext(Protocol):
    """The context of a staged unit.

    `records` lists every record of the unit in log order, so that the leader need not parse what it wrote; a unit with
    records must not be staged without one.
    """

    @property
    def records(self) -> Sequence[StagedRecord]:
        """The unit's records; empty for a unit of commands."""

    def applied(self) -> None:
        """The unit is committed and applied: its messages can be read, its commands are in the state."""

    def dropped(self) -> None:
        """This replica lost track of the unit: its outcome is unknown."""


class CommandContext:
    """The context of a unit of commands; `done` is told the outcome."""

    __slots__ = ("_done",)

    records: Sequence[StagedRecord] = ()

    def __init__(self, done: Done) -> None:
        self._done = done

    def applied(self) -> None:
        """See `StagedContext.applied`."""
        self._done(None)

    def dropped(self) -> None:
        """See `StagedContext.dropped`."""
        self._done(OutcomeUnknownError("leadership was lost before the change was committed; it may still take effect"))
