"""Bounds that all connections to a server's port for clients share.

They bound the memory for requests and for unread answers, the connections that have not been handed over yet, and the
log lines about connections. Brokers and name servers have the same bounds, each with its own limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from dledger_base.doorman import SILENCE_S, Door
from dledger_base.request_memory import RequestMemory, RequestMemoryLimits, Senders, UnprovenSender
from dledger_base.telling import LINES_OF_CLIENTS, Telling
from dledger_base.tls import TlsContext
from dledger_base.unread_answers import UnreadAnswers


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Limits of a port, as the server's configuration has them."""

    max_connections: int
    max_frame_bytes: int
    """Maximum size in bytes of a request."""
    max_partial_bytes: int
    """Maximum size in bytes of all requests that have begun to arrive."""
    slow_sender_timeout_ms: int
    """Time limit in milliseconds for the rest of such a request while others wait."""
    unread_bytes: int
    """Maximum size in bytes of a connection's unread answers. Beyond it no request is read."""
    max_unread_bytes: int
    """Maximum size in bytes of the unread answers of all connections."""
    slow_reader_timeout_ms: int
    """Time limit in milliseconds for a client to read what exceeds `unread_bytes`."""
    idle_timeout_ms: int
    """Time limit in milliseconds for a connection's silence."""
    takes_plain: bool
    """True if a port with TLS takes connections without TLS, too."""


class PortCounters(Protocol):
    """Counters of a server for its port."""

    def count_shortage(self) -> None:
        """Count a shortage of the memory for requests."""

    def count_slow_sender(self) -> None:
        """Count a connection that was closed because the rest of its request did not come in time."""

    def count_unread(self) -> None:
        """Count a connection that was closed because clients left too many answers unread."""


class PortBounds:
    """Bounds of the port that `connections` are connected to. Needs a running event loop."""

    def __init__(
        self,
        connections: Collection[UnprovenSender],
        limits: PortLimits,
        counters: PortCounters,
        tls: TlsContext | None,
    ) -> None:
        self.limits = limits
        self.unread = UnreadAnswers(limits.max_unread_bytes, counters.count_unread)
        self.telling = Telling(of_host=LINES_OF_CLIENTS)
        self.door = Door(
            tls,
            takes_plain=limits.takes_plain,
            max_connections=limits.max_connections,
            open_connections=connections.__len__,
            silence_s=min(SILENCE_S, limits.idle_timeout_ms / 1000),
        )

        def memory(max_bytes: int, *, are_strange: bool) -> RequestMemory:
            return RequestMemory(
                Senders(connections, are_strange=are_strange),
                asyncio.get_running_loop(),
                RequestMemoryLimits(max_bytes, limits.max_frame_bytes, limits.slow_sender_timeout_ms / 1000),
                on_shortage=counters.count_shortage,
                on_timeout=counters.count_slow_sender,
            )

        self.request_memory = memory(limits.max_partial_bytes, are_strange=False)
        self.stranger_memory = memory(2 * limits.max_frame_bytes, are_strange=True)
        """Memory for requests of clients that have not signed anything, while access control is on."""

    @property
    def partial_bytes(self) -> int:
        """Size in bytes of all requests that have not fully arrived."""
        return self.request_memory.held_bytes + self.stranger_memory.held_bytes

    def close(self) -> None:
        """Hand over no more connections, and give no more turns to requests that arrive. May be repeated."""
        self.door.close()
        self.request_memory.close()
        self.stranger_memory.close()
