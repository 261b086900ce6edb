"""Units of the jobs that deliver and move due messages: copies, and the facts about the rows that they were made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from dledger_broker.features.delay.commands import (
    CancelTimers,
    FireTimers,
    MoveTimers,
    TimerRow,
    added_rows,
    command_bytes,
)
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.units import FixedRows, NewRecord


class RowUnit(ABC):
    """What one unit says: `done` are rows whose messages are delivered or moved, `cancelled` those that end otherwise.

    A delivered row may have no copy, for its topic may be gone. `facts_of_done` is how many facts tell each row that is
    done.
    """

    facts_of_done: ClassVar[int]

    def __init__(self) -> None:
        self.done: list[TimerRow] = []
        self.cancelled: list[TimerRow] = []
        self.copies: list[NewRecord] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.done or self.cancelled)

    @property
    def positions(self) -> list[int]:
        """Where the records of all rows are."""
        return [row[1] for row in (*self.done, *self.cancelled)]

    @property
    def size(self) -> int:
        """Bytes of the log."""
        commands = [command_bytes(len(rows)) for rows in (self.cancelled, *[self.done] * self.facts_of_done) if rows]
        return sum(copy.size for copy in self.copies) + sum(commands)

    @property
    def commands(self) -> list[Command | FixedRows]:
        """The facts."""
        commands = self._done_commands() if self.done else []
        if self.cancelled:
            commands.append(CancelTimers.of(self.cancelled))
        return commands

    @abstractmethod
    def _done_commands(self) -> list[Command | FixedRows]:
        """What is said of the rows that are done; there are some."""


class FireUnit(RowUnit):
    """Deliveries. `topics_gone` has the topic of each row that has no copy."""

    facts_of_done = 1

    def __init__(self) -> None:
        super().__init__()
        self.topics_gone: list[str] = []

    def _done_commands(self) -> list[Command | FixedRows]:
        return [FireTimers.of(self.done)]


class MoveUnit(RowUnit):
    """Moves to the log's end, where the copies wait."""

    facts_of_done = 2

    def _done_commands(self) -> list[Command | FixedRows]:
        return [MoveTimers.of(self.done), added_rows([(row[0], row[2]) for row in self.done])]
