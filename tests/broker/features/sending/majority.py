"""Majority of a group that stores nothing until a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from served_broker import ServedBroker


class Majority:
    """Majority that commits nothing until told.

    `count` returns the number of requests in a staged unit with these commands and this context.
    """

    def __init__(
        self,
        broker: ServedBroker,
        monkeypatch: pytest.MonkeyPatch,
        count: Callable[[bytes, object], int] = lambda _commands, _context: 0,
    ) -> None:
        self.units: list[int] = []
        """Number of requests in each staged unit that has any."""
        self._broker, node = broker, broker.memory.node
        self._commit: Callable[[], None] = node.commit
        stage: Callable[..., int] = node.stage

        def counted(*arguments: Any, commands: bytes = b"", context: object = None, **keywords: Any) -> int:
            position = stage(*arguments, commands=commands, context=context, **keywords)
            if requests := count(commands, context):
                self.units.append(requests)
            return position

        monkeypatch.setattr(node, "stage", counted)
        monkeypatch.setattr(node, "commit", lambda: None)

    def has_it(self) -> None:
        """Commit what is staged, and let everything happen that is ready then."""
        self._commit()
        self._broker.settle()
