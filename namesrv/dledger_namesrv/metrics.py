"""Counters of a name server: plain integers, which the HTTP port reads on request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from dledger_remoting.codes import request_code_name

SILENT: Final = "silent"
CONNECTION_LOST: Final = "connection_lost"
UNREGISTERED: Final = "unregistered"
REMOVALS: Final = (SILENT, CONNECTION_LOST, UNREGISTERED)
"""Reasons why a node leaves the routes."""

LIMITS: Final = (
    "max_connections",
    "max_connections_per_host",
    "max_partial_bytes",
    "slow_sender_timeout_ms",
    "max_in_flight",
    "max_write_buffer_bytes",
    "max_unread_bytes",
    "slow_reader_timeout_ms",
    "idle_timeout_ms",
    "max_nodes",
    "max_routes",
    "max_absent_groups",
    "max_stored_bytes",
    "max_watch_bytes",
)
"""The limits by their configuration keys. The registry itself counts the groups that it forgot."""


@dataclass(slots=True)
class NameServerCounters:
    """Numbers that only grow from the start of the process on.

    `requests` counts by the name of the request code, `removals` by one of `REMOVALS`, and `limits` by one of `LIMITS`,
    how often that limit acted.
    """

    requests: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    frames_refused: int = 0
    headers_refused: int = 0
    registrations: int = 0
    registrations_refused: int = 0
    task_restarts: int = 0
    removals: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REMOVALS, 0)))
    limits: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(LIMITS, 0)))

    def count_restart(self) -> None:
        """Count a restart of a task that must not end, after an unexpected exception."""
        self.task_restarts += 1

    def count_full(self) -> int:
        """Count a connection that found `max_connections` open, and return the count."""
        self.limits["max_connections"] += 1
        return self.limits["max_connections"]

    def count_full_host(self) -> int:
        """Count a connection that found `max_connections_per_host` from its host open, and return the count."""
        self.limits["max_connections_per_host"] += 1
        return self.limits["max_connections_per_host"]

    def count_shortage(self) -> None:
        """Count a shortage of memory: connections had to take turns in sending large requests, or were closed."""
        self.limits["max_partial_bytes"] += 1

    def count_unread(self) -> None:
        """Count a closed connection: all connections together had left `max_unread_bytes` unread."""
        self.limits["max_unread_bytes"] += 1

    def count_unread_pause(self) -> None:
        """Count a connection that was not read, because its client left `max_write_buffer_bytes` of answers unread."""
        self.limits["max_write_buffer_bytes"] += 1

    def count_slow_reader(self) -> None:
        """Count a connection that was closed because its client did not read in time."""
        self.limits["slow_reader_timeout_ms"] += 1

    def count_silence(self) -> None:
        """Count a connection that was closed after too long a silence."""
        self.limits["idle_timeout_ms"] += 1

    def count_slow_sender(self) -> None:
        """Count a connection that was closed because it did not send the rest of its request while others waited."""
        self.limits["slow_sender_timeout_ms"] += 1

    def count_request(self, code: int) -> None:
        """Count a request. All codes without a name are counted as `unknown`."""
        self.requests[request_code_name(code)] += 1
