"""Time limit for the first request of a connection, so that a silent connection does not keep its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

FIRST_REQUEST_S: Final = 10.0
"""Interval in seconds between two checks of a connection.

A connection is late if nothing of its first request arrived between two checks: 10 to 20 s after the last byte. So a
slow request has more time while some of it arrives in each interval.
"""


class Sender(Protocol):
    """A connection whose client sends requests."""

    arrived: int
    """Bytes of an unfinished request that are held, 0 if there is none."""


class FirstRequest:
    """Timer for the first request of `sender`. Calls `on_late` when the request is late, unless `came` was called."""

    def __init__(self, sender: Sender, on_late: Callable[[], None]) -> None:
        self._sender = sender
        self._on_late = on_late
        self._last_arrived = -1
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def came(self) -> None:
        """Stop the timer, because the request has come or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._sender.arrived == self._last_arrived:
            self._timer = None
            self._on_late()
            return
        self._last_arrived = self._sender.arrived
        self._timer = asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._check)
