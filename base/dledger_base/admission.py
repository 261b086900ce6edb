"""Admission of connections to a server's ports: limits on all connections, and on those from one host.

A connection beyond a limit is closed at once and counted. The log has at most one line per interval about it, because
strangers must not fill the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

COMPLAINT_INTERVAL_S: Final = 10.0

_logger = logging.getLogger(__name__)


class Address(Protocol):
    """Address of a connection's other end."""

    @property
    def ip(self) -> str:
        """Its numeric IP address."""


class Guest(Protocol):
    """A connection that asks for admission."""

    @property
    def address(self) -> Address:
        """Address of its other end."""


class RefusalCounters(Protocol):
    """Counters of a server for connections that these limits refuse. Each call returns the count so far."""

    def count_full(self) -> int:
        """Count a connection that found `max_connections` open."""

    def count_full_host(self) -> int:
        """Count a connection that found `max_connections_per_host` from its host open."""


GuestT = TypeVar("GuestT", bound=Guest)


class Admission(Generic[GuestT]):
    """Keeps `connections` within the limits. The set holds the open connections, also for other readers.

    `max_per_host` is called for each connection, so that the limit can change; open connections stay. A server may have
    places `beyond` its limit, and decides who keeps one. If these are taken too, `make_room` is called, which may free
    a place.
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
        self._extra_places = beyond
        self._make_room = make_room
        self._count_by_host: Counter[str] = Counter()
        self._exempt: set[GuestT] = set()
        self._next_complaint_at = 0.0

    def admit(self, connection: GuestT) -> bool:
        """Take a new connection; False if there are too many already, in all or from its host."""
        host, limit_per_host = connection.address.ip, self._max_per_host()
        if self._count_by_host[host] >= limit_per_host:
            why = f"max_connections_per_host = {limit_per_host} of this one are open"
            self._complain(connection, why, self._counters.count_full_host())
            return False
        if self._has_no_room() and self._make_room is not None:
            self._make_room()
        if self._has_no_room():
            self.refuse_beyond(connection)
            return False
        self._connections.add(connection)
        self._count_by_host[host] += 1
        return True

    def lost(self, connection: GuestT) -> bool:
        """Forget a connection that is gone. Returns True if it had been admitted."""
        if connection not in self._connections:
            return False
        self._connections.remove(connection)
        if connection in self._exempt:
            self._exempt.remove(connection)
        else:
            self._uncount(connection.address.ip)
        return True

    def exempt(self, connection: GuestT) -> None:
        """Count an open connection no longer towards the limit of its host: many accounts may share an address."""
        if connection in self._connections and connection not in self._exempt:
            self._exempt.add(connection)
            self._uncount(connection.address.ip)

    def _uncount(self, host: str) -> None:
        self._count_by_host[host] -= 1
        if not self._count_by_host[host]:
            del self._count_by_host[host]

    def refuse_beyond(self, connection: GuestT, why: str = "") -> None:
        """Count and log that `max_connections` are open, and why this connection gets no place beyond them."""
        reason = f"max_connections = {self._max_connections} are open" + (f", and {why}" if why else "")
        self._complain(connection, reason, self._counters.count_full())

    def _has_no_room(self) -> bool:
        return len(self._connections) >= self._max_connections + self._extra_places

    def _complain(self, connection: GuestT, why: str, refused: int) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_complaint_at:
            self._next_complaint_at = now + COMPLAINT_INTERVAL_S
            _logger.warning(
                "event=connection_refused client=%s reason='%s' refused=%d remedy='close some, or set a higher limit'",
                connection.address,
                why,
                refused,
            )
