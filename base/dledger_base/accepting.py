"""Listening sockets whose connections never take the last file descriptors of a process.

A process without free descriptors can neither begin a file of its log nor reach its peers. An event loop's own server
first accepts all connections that wait in the kernel, up to thousands in one turn. A `Port` accepts a few in a turn. A
connection that would take a reserved descriptor is kept only if it displaces a connection that has proven nothing. The
kernel always gives the lowest free descriptor, so its number shows how many are taken:

    0 … limit - 2 * reserve     connections of clients
    …   limit - reserve         connections at the peer port, too
    …   limit                   files, and connections that this process opens
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Final

ACCEPTED_PER_TURN: Final = 32
BACKLOG: Final = 1024
MAX_RESERVE: Final = 512
PAUSE_S: Final = 0.1
"""Interval in seconds between two attempts to accept while the system lacks a descriptor or memory for a connection."""
COMPLAINT_INTERVAL_S: Final = 10.0

_log = logging.getLogger(__name__)


class Reserve(IntEnum):
    """Number of reserves of descriptors that the connections of a port leave free."""

    PEERS = 1
    CLIENTS = 2


def descriptors_for(reserve: Reserve, limit: int | None = None) -> int:
    """Return the first descriptor that a connection may not have, of `limit` or of what the process may open now."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    return limit - reserve * min(MAX_RESERVE, limit // 8)


class Port:
    """Port that accepts connections and gives each to a protocol, which `make` makes for the host of the client.

    `make_room` ends a connection of the port that has proven nothing, and returns False if there is none. `bind` takes
    the addresses of a host, as `loop.create_server` does. `start_serving` listens. Both raise `OSError`.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make: Callable[[str], asyncio.BaseProtocol],
        make_room: Callable[[], bool],
        reserve: Reserve,
    ) -> None:
        self.sockets = sockets
        self._make_protocol = make
        self._make_room = make_room
        self._reserve = reserve
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[object]] = set()
        self._pause_timers: set[asyncio.TimerHandle] = set()
        self._is_closed = False
        self._refused_count = 0
        self._next_warning_at = 0.0

    @classmethod
    async def bind(
        cls,
        host: str,
        port: int,
        make: Callable[[str], asyncio.BaseProtocol],
        make_room: Callable[[], bool],
        reserve: Reserve = Reserve.CLIENTS,
    ) -> Port:
        """Take a port on every address of a host; for an empty host, on all addresses of this machine."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(addresses):
                sockets.append(_bind_socket(family, kind, protocol, address))
        except OSError:
            for bound in sockets:
                bound.close()
            raise
        return cls(sockets, make, make_room, reserve)

    @property
    def address(self) -> tuple[str, int]:
        """The first address: host and port."""
        host, port = self.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def start_serving(self, backlog: int = BACKLOG) -> None:
        """Listen and accept. At most `backlog` connections wait in the kernel."""
        for listening in self.sockets:
            listening.listen(backlog)
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop accepting. Connections stay open. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in self._pause_timers:
            timer.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()

    def _accept(self, listening: socket.socket) -> None:
        limit = descriptors_for(self._reserve)
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # a shortage, or a network error of a connection that waited to be accepted
                self._log_refusal(error.strerror or str(error))
                self._pause(listening)
                return
            is_scarce = accepted.fileno() >= limit
            if is_scarce and not self._make_room():
                accepted.close()
                self._log_refusal(f"file descriptors from {limit} on are reserved for files and peers")
                continue
            accepted.settimeout(0)
            task = self._loop.create_task(self._connect(accepted, str(address[0])))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
            if is_scarce:
                return  # the evicted connection gives its descriptor back only after this turn

    async def _connect(self, accepted: socket.socket, host: str) -> None:
        try:
            await self._loop.connect_accepted_socket(partial(self._make_protocol, host), accepted)
        except OSError as error:  # the client is gone
            _log.debug("event=accept_failed reason=%r", str(error))
            accepted.close()

    def _pause(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening)
        timer = self._loop.call_later(PAUSE_S, self._resume, listening)
        self._pause_timers = {pending for pending in self._pause_timers if pending.when() > self._loop.time()} | {timer}

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _log_refusal(self, reason: str) -> None:
        """Count a refused connection, and log at intervals only, because strangers must not fill the log."""
        self._refused_count += 1
        now = self._loop.time()
        if now >= self._next_warning_at:
            self._next_warning_at = now + COMPLAINT_INTERVAL_S
            _log.warning(
                "event=connection_refused port=%d reason=%r refused=%d remedy='raise the limit of open files'",
                self.address[1],
                reason,
                self._refused_count,
            )


def _bind_socket(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.settimeout(0)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(
            error.errno, f"error while attempting to bind on address {address}: {str(error).lower()}"
        ) from error
    return bound
