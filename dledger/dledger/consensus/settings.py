"""Settings of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Settings of an engine: times in seconds, sizes in bytes."""

    heartbeat_s: float = 0.1
    election_min_s: float = 0.5
    election_max_s: float = 1.0
    max_run_bytes: int = 1 << 20
    """Maximum size of the entries in one append, unless one entry is larger."""
    max_in_flight_bytes: int = 4 << 20
    """Maximum number of unanswered bytes per peer, unless one entry is larger."""
