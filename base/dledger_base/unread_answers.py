"""Budget of the answers that clients have not read, over all connections of a port.

Each connection has limits of its own, which stop reading its requests while its client leaves answers unread. This
module bounds all connections together. If they hold more than `max_bytes`, those that hold most are closed. A
connection reports what it holds when it writes, and may hold less soon after. So all connections are asked again before
one is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

LEFT: Final = 7 / 8
"""Maximum share of the budget that is in use after connections were closed, so that few writes close a connection."""


class Reader(Protocol):
    """A connection whose client reads answers."""

    @property
    def unread_bytes(self) -> int:
        """Size of the answers that the kernel has not taken yet, in bytes."""

    def cut_off(self, why: str) -> None:
        """Close at once, without waiting for the client to read."""


class UnreadAnswers:
    """Sizes of unread answers by connection. `on_limit` is called for each connection that is closed."""

    def __init__(self, max_bytes: int, on_limit: Callable[[], None]) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._on_limit = on_limit
        self._unread_by_reader: dict[Reader, int] = {}

    def note(self, reader: Reader, size: int) -> None:
        """Record how much a connection holds after a write."""
        self.held_bytes += size - self._unread_by_reader.get(reader, 0)
        if size:
            self._unread_by_reader[reader] = size
        else:
            self._unread_by_reader.pop(reader, None)
        if self.held_bytes > self._max_bytes:
            self._close_largest()

    def forget(self, reader: Reader) -> None:
        """Forget a connection that is gone."""
        self.held_bytes -= self._unread_by_reader.pop(reader, 0)

    def _close_largest(self) -> None:
        self._unread_by_reader = {reader: size for reader in self._unread_by_reader if (size := reader.unread_bytes)}
        self.held_bytes = sum(self._unread_by_reader.values())
        if self.held_bytes <= self._max_bytes:
            return
        for reader in sorted(self._unread_by_reader, key=self._unread_by_reader.__getitem__, reverse=True):
            size = self._unread_by_reader[reader]
            self._on_limit()
            why = f"it left {size} bytes of answers unread, more than others, when all left {self.held_bytes}"
            self.forget(reader)
            reader.cut_off(f"{why}: the limit is max_unread_bytes = {self._max_bytes}")
            if self.held_bytes <= self._max_bytes * LEFT:
                return
