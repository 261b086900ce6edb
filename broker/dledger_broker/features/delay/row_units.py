"""Units of the jobs that deliver and move delayed messages: copies, and commands about the rows of the originals."""

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
    """Unit of a job: rows and the copies of their messages.

    The messages of rows in `done` are delivered or moved; rows in `cancelled` end otherwise. A delivered row may have
    no copy, because its topic may be gone. `facts_of_done` is the number of commands that list each row in `done`.
    """

    facts_of_done: ClassVar[int]

    def __init__(self) -> None:
        self.done: list[TimerRow] = []
        self.cancelled: list[TimerRow] = []
        self.copies: list[NewRecord] = []

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        return not (self.done or self.cancelled)

    @property
    def positions(self) -> list[int]:
        """Return the positions of the records of all rows."""
        return [row[1] for row in (*self.done, *self.cancelled)]

    @property
    def size(self) -> int:
        """Return the size of the unit in bytes of the log."""
        commands = [command_bytes(len(rows)) for rows in (self.cancelled, *[self.done] * self.facts_of_done) if rows]
        return sum(copy.size for copy in self.copies) + sum(commands)

    @property
    def commands(self) -> list[Command | FixedRows]:
        """Return the commands about all rows."""
        commands = self._done_commands() if self.done else []
        if self.cancelled:
            commands.append(CancelTimers.of(self.cancelled))
        return commands

    @abstractmethod
    def _done_commands(self) -> list[Command | FixedRows]:
        """Return the commands about the rows in `done`, which is not empty."""


class FireUnit(RowUnit):
    """Unit that delivers messages. `topics_gone` has the topic of each row without a copy."""

    facts_of_done = 1

    def __init__(self) -> None:
        super().__init__()
        self.topics_gone: list[str] = []

    def _done_commands(self) -> list[Command | FixedRows]:
        return [FireTimers.of(self.done)]


class MoveUnit(RowUnit):
    """Unit that moves messages to the log's end, where the copies wait."""

    facts_of_done = 2

    def _done_commands(self) -> list[Command | FixedRows]:
        return [MoveTimers.of(self.done), added_rows([(row[0], row[2]) for row in self.done])]
