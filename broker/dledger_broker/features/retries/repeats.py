"""Memory of send-backs: a message of the log is copied once for each group, however often it is sent back.

Each copy has its own place in the log, and a higher delivery count. So group and place distinguish a repetition from
the next delivery. Only this leader remembers, for a minute, or until a group is reset or deleted. After that, members
may get the message and send it back once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dledger_broker.kernel.requests import Request

REMEMBER_S: Final = 60.0
"""Time in seconds for which a stored copy is remembered."""
MAX_REMEMBERED: Final = 100_000
"""Maximum number of stored copies that are remembered. The oldest is forgotten first."""


class SentBack(NamedTuple):
    """Message that a group has sent back, by its position in the log."""

    group: str
    position: int


class Repeats:
    """Send-backs that were stored recently, and send-backs in flight with the requests that repeat them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._stored: dict[SentBack, float] = {}
        self._in_flight: dict[SentBack, list[Request]] = {}

    def forget(self) -> None:
        """Forget what was stored.

        Members of a group that was reset, or created anew, may get the same messages again.
        """
        self._stored.clear()

    def is_stored(self, what: SentBack) -> bool:
        """Return whether a copy was stored within the last minute."""
        stored_at = self._stored.get(what)
        return stored_at is not None and self._now() - stored_at < REMEMBER_S

    def begin(self, what: SentBack, request: Request) -> bool:
        """Note that a request stores a copy.

        Return False if another request does so already, whose outcome it then gets.
        """
        repeats = self._in_flight.get(what)
        if repeats is None:
            self._in_flight[what] = []
            return True
        repeats.append(request)
        return False

    def end(self, what: SentBack, *, stored: bool) -> list[Request]:
        """Note the outcome of a request that began. Return the requests that repeated it."""
        if stored:
            self._stored.pop(what, None)
            if len(self._stored) >= MAX_REMEMBERED:
                del self._stored[next(iter(self._stored))]
            self._stored[what] = self._now()
        return self._in_flight.pop(what)
