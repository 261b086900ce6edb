"""Settings of a simulated group: members, sizes, times, and the behaviour of disks and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dledger.replication_keys import Replication

_DEFAULTS = Replication()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a group. All sizes are small, so that rolls, snapshots and catch-up happen all the time."""

    nodes: int = 3
    founders: int = 3
    """Number of nodes that are voters from the start. The others join as learners."""
    learners: int = 0
    """Number of nodes, from the end of the list, that stay learners."""
    flush: Literal["sync", "async"] = "sync"
    segment_bytes: int = 64 << 10
    snapshot_interval_ms: int = 300
    recent_bytes: int = 48 << 10
    sizes_window: int = 64
    """Number of entries whose sizes the core remembers. Older entries are sent by catch-up."""
    scrub_interval_ms: int = 2000
    max_uncommitted_bytes: int = 1 << 20
    call_cost_s: float = 0.0
    clock_drift: float = 0.01
    """Maximum deviation of a clock's rate from 1."""
    max_open_segments: int | None = None
    """Maximum number of segment files that stay open. None takes the limit of the simulator's own process."""
    max_files: int | None = None
    """Maximum number of files that a node's process may have open. None means no limit."""
    heartbeat_ms: int = _DEFAULTS.heartbeat_ms
    election_min_ms: int = _DEFAULTS.election_min_ms
    election_max_ms: int = _DEFAULTS.election_max_ms
    reserve_bytes: int = _DEFAULTS.reserve_bytes
    names_in_order: bool = True
    """True if directory entries survive a power loss in order; False if each survives or is lost by itself."""
    drops_failed_pages: bool = False
    """True if reads return the old bytes after a failed sync."""
    switch_share: float = 0.0
    """Probability that a disk call of blocking work switches to something else.

    At 0 such work runs in a single step.
    """

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(self.nodes))

    @property
    def learner_names(self) -> tuple[str, ...]:
        return self.names[self.nodes - self.learners :]
