"""Admission of connections to a server's ports: so many in all, and so many from one host.

One more is closed at once, and counted; that is logged once in a while, for strangers must not fill the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from dledger_remoting.hosts import HostAddress

COMPLAINT_INTERVAL_S: Final = 10.0

_logger = logging.getLogger(__name__)


class Guest(Protocol):
    """A connection that wants in."""

    address: HostAddress


class RefusalCounters(Protocol):
    """Where a server counts what these limits refuse. Each call gives how often that limit has acted by now."""

    def count_full(self) -> int:
        """There were `max_connections` already."""

    def count_full_host(self) -> int:
        """There were `max_connections_per_host` from the same host already."""


GuestT = TypeVar("GuestT", bound=Guest)


class Admission(Generic[GuestT]):
    """Keeps `connections` within the limits; whoever else reads the set finds there those that are open.

    `max_per_host` is asked for each connection, so that the limit can change: those that are open stay. A server may
    have places `beyond` its limit, and says who keeps one; `make_room` is called when they are taken, too, and may see
    to it that one is not.
    """

    def __init__(
        self,
        connections: set[GuestT],
        counters: RefusalCounters,
        *,
        max_connections: int,
        max_per_host: Callable[[], int],
        beyond: int = 0,
        make_room: Callable[[], None] | None = None,
    ) -> None:
        self._connections = connections
        self._counters = counters
        self._max_connections = max_connections
        self._max_per_host = max_per_host
        self._beyond = beyond
        self._make_room = make_room
        self._by_host: Counter[str] = Counter()
        self._complain_at = 0.0

    def admit(self, connection: GuestT) -> bool:
        """Take a new connection; False if there are too many already, in all or from its host."""
        host, limit_per_host = connection.address.ip, self._max_per_host()
        if self._by_host[host] >= limit_per_host:
            why = f"max_connections_per_host = {limit_per_host} of this one are open"
            self._complain(connection, why, self._counters.count_full_host())
            return False
        if self._has_no_room() and self._make_room is not None:
            self._make_room()
        if self._has_no_room():
            self.refuse_beyond(connection)
            return False
        self._connections.add(connection)
        self._by_host[host] += 1
        return True

    def lost(self, connection: GuestT) -> bool:
        """A connection is gone; True if it had been taken."""
        if connection not in self._connections:
            return False
        self._connections.remove(connection)
        host = connection.address.ip
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        return True

    def refuse_beyond(self, connection: GuestT, why: str = "") -> None:
        """Count and log that `max_connections` are open, and why this one has no place beyond them."""
        reason = f"max_connections = {self._max_connections} are open" + (f", and {why}" if why else "")
        self._complain(connection, reason, self._counters.count_full())

    def _has_no_room(self) -> bool:
        return len(self._connections) >= self._max_connections + self._beyond

    def _complain(self, connection: GuestT, why: str, refused: int) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_INTERVAL_S
            _logger.warning(
                "event=connection_refused client=%s reason='%s' refused=%d remedy='close some, or set a higher limit'",
                connection.address,
                why,
                refused,
            )
