"""Waiting for one's own units: what `Node.append` gives to the log, and who tells it what became of that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dledger.errors import LogFullError, OutcomeUnknownError
from dledger.statemachine import CommittedEntry, Leadership, StateMachine
from dledger.types import Position


class Appended:
    """The context of `Node.append`."""

    __slots__ = ("future", "position")

    def __init__(self, future: asyncio.Future[Position]) -> None:
        self.future = future
        self.position = Position(-1)

    def applied(self) -> None:
        """The unit is committed, and applied here."""
        if not self.future.done():
            self.future.set_result(self.position)

    def dropped(self, full: LogFullError | None) -> None:
        """The unit is in no log, or nobody here will know what became of it; see `StateMachine.dropped`."""
        if not self.future.done():
            unknown = "leadership was lost before the entry was committed: it may be in the log"
            self.future.set_exception(full or OutcomeUnknownError(unknown))


class AppendResolver:
    """A state machine around the service's, which answers `Node.append` once the service has applied."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.rebuild = machine.rebuild
        self.decode = machine.decode
        self.snapshot = machine.snapshot
        self.digest = machine.digest
        self.on_leadership: Callable[[Leadership], None] = machine.on_leadership

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """See `StateMachine.apply`."""
        self._machine.apply(entries)
        for entry in entries:
            for context in entry.contexts:
                if isinstance(context, Appended):
                    context.applied()

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """See `StateMachine.dropped`."""
        others = []
        for context in contexts:
            if isinstance(context, Appended):
                context.dropped(full)
            else:
                others.append(context)
        if others:
            self._machine.dropped(others, full)
