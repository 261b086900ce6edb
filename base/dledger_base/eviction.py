"""Eviction of connections that have proven nothing yet, when a port has too many of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Strangers(Generic[T]):
    """Connections that may have to give way, by host, each in the order of arrival.

    A host that floods a port displaces only its own connections. Finding a connection to displace takes a step for each
    host.
    """

    def __init__(self) -> None:
        self._by_host: dict[str, dict[T, None]] = {}
        self._hosts: dict[T, str] = {}

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._hosts)

    def __contains__(self, connection: object) -> bool:
        """Return whether a connection is registered."""
        return connection in self._hosts

    def add(self, connection: T, host: str) -> None:
        """Add a connection as the newest of its host."""
        self._by_host.setdefault(host, {})[connection] = None
        self._hosts[connection] = host

    def discard(self, connection: T) -> bool:
        """Remove a connection, and return whether it was there."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return False
        host_connections = self._by_host[host]
        del host_connections[connection]
        if not host_connections:
            del self._by_host[host]
        return True

    def oldest_of_busiest_host(self) -> T:
        """Return the connection that has to give way. There must be one."""
        busiest: dict[T, None] = max(self._by_host.values(), key=len)
        return next(iter(busiest))

    def __iter__(self) -> Iterator[T]:
        """Iterate over all connections."""
        return iter(self._hosts)
