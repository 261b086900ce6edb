"""Waiting for one's own units: the context of `Node.append`, and the state machine that resolves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dledger.errors import LogFullError, OutcomeUnknownError
from dledger.statemachine import CommittedEntry, Leadership, StateMachine
from dledger.types import Position


class Appended:
    """Context of `Node.append`."""

    __slots__ = ("future", "position")

    def __init__(self, future: asyncio.Future[Position]) -> None:
        self.future = future
        self.position = Position(-1)

    def applied(self) -> None:
        """Resolve the future: the unit is committed, and applied here."""
        if not self.future.done():
            self.future.set_result(self.position)

    def dropped(self, full: LogFullError | None) -> None:
        """Fail the future: the unit is in no log, or its outcome will stay unknown here; see `StateMachine.dropped`."""
        if not self.future.done():
            unknown = "leadership was lost before the entry was committed: it may be in the log"
            self.future.set_exception(full or OutcomeUnknownError(unknown))


class AppendResolver:
    """State machine around the service's, which answers `Node.append` once the service has applied the entry."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.rebuild = machine.rebuild
        self.decode = machine.decode
        self.snapshot = machine.snapshot
        self.digest = machine.digest
        self.on_leadership: Callable[[Leadership], None] = machine.on_leadership

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Have the service apply the entries, then answer their appends."""
        self._machine.apply(entries)
        for entry in entries:
            for context in entry.contexts:
                if isinstance(context, Appended):
                    context.applied()

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """Fail the dropped appends, and pass all other contexts on to the service."""
        others = []
        for context in contexts:
            if isinstance(context, Appended):
                context.dropped(full)
            else:
                others.append(context)
        if others:
            self._machine.dropped(others, full)
