"""Counters of a name server: plain integers, read by the HTTP port when somebody asks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from dledger_remoting.codes import request_code_name

SILENT: Final = "silent"
CONNECTION_LOST: Final = "connection_lost"
UNREGISTERED: Final = "unregistered"
REMOVALS: Final = (SILENT, CONNECTION_LOST, UNREGISTERED)
"""Why a node leaves the routes."""

LIMITS: Final = (
    "max_connections",
    "max_connections_per_host",
    "max_partial_bytes",
    "slow_sender_timeout_ms",
    "max_in_flight",
    "max_write_buffer_bytes",
    "slow_reader_timeout_ms",
    "idle_timeout_ms",
    "max_nodes",
    "max_routes",
    "max_absent_groups",
    "max_stored_bytes",
    "max_watch_bytes",
)
"""The limits, by their configuration keys; the registry counts the groups that it forgot."""


@dataclass(slots=True)
class NameServerCounters:
    """Numbers that only grow, from the start of the process on.

    `requests` counts by the name of the request code, `removals` by one of `REMOVALS`, `limits` by one of `LIMITS` how
    often it acted.
    """

    requests: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    frames_refused: int = 0
    registrations: int = 0
    registrations_refused: int = 0
    task_restarts: int = 0
    removals: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REMOVALS, 0)))
    limits: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(LIMITS, 0)))

    def count_restart(self) -> None:
        """A task that must not end was started again after an unexpected exception."""
        self.task_restarts += 1

    def count_full(self) -> int:
        """See `RefusalCounters`."""
        self.limits["max_connections"] += 1
        return self.limits["max_connections"]

    def count_full_host(self) -> int:
        """See `RefusalCounters`."""
        self.limits["max_connections_per_host"] += 1
        return self.limits["max_connections_per_host"]

    def count_shortage(self) -> None:
        """Connections had to take turns in sending large requests, or be closed, for want of memory."""
        self.limits["max_partial_bytes"] += 1

    def count_slow_sender(self) -> None:
        """A connection was closed because it did not send the rest of its request while others waited."""
        self.limits["slow_sender_timeout_ms"] += 1

    def count_request(self, code: int) -> None:
        """A request came; all codes without a name are counted as `unknown`."""
        self.requests[request_code_name(code)] += 1
