"""Watch over the disk, the clocks and the members of a replica's group, with warnings for operators.

A warning about clocks or members is logged once its reason has lasted `LASTING_S`, and again every `REPEAT_S` while the
reason lasts. The file system of the log is above its watermark, or so full that only privileged entries still fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.replica.clocks import clock_ahead_ms
from dledger.store.disk import DiskSpace

SNAPSHOTS_KEPT = 4
"""Number of snapshots, each as large as the newest snapshot, for which space stays free."""
SEGMENT_SHARE_KEPT = 64
"""Divisor: one part of a segment in so many also stays free, for small files and a first snapshot."""
WARNING_HYSTERESIS = 0.01
"""Minimum distance below the watermark, as a share of the file system, at which the warning ends."""
MAX_CLOCK_DIFFERENCE_MS = 5_000
LASTING_S = 3.0
"""Minimum seconds for which a reason must last.

A node that was stopped or replaced gives a false picture for a moment.
"""
REPEAT_S = 60.0

logger = logging.getLogger(__name__)


class DiskWatch:
    """Result of the last check of the file system. With `follow` the service sets the limits that it is compared with.

    `warning` says that the file system is above the watermark, with both values and what to do. It is None below the
    watermark.
    """

    def __init__(self, config: ReplicaConfig) -> None:
        self.space: DiskSpace | None = None
        """None before the first check."""
        self.warning: str | None = None
        self._config = config
        self._snapshot_bytes = 0
        self._watermark: Callable[[], float] = lambda: 1.0
        self._kept_free: Callable[[], int] = lambda: 0

    def follow(self, watermark: Callable[[], float], kept_free: Callable[[], int]) -> None:
        """Set the limits of the service, as `Log.watch_disk` describes."""
        self._watermark, self._kept_free = watermark, kept_free

    def update(self, space: DiskSpace, snapshot_bytes: int) -> None:
        """Take the result of a look: this space, and a newest snapshot of so many bytes."""
        self.space, self._snapshot_bytes = space, snapshot_bytes
        self._update_warning(space)

    @property
    def used_ratio(self) -> float:
        """Used share of the file system; 0 before the first check."""
        return 0.0 if self.space is None else self.space.used_ratio

    @property
    def is_short(self) -> bool:
        """True if so little space is free that trims, snapshots and rewritten messages may need it."""
        return self.space is not None and self.space.free_bytes < self._reserved

    @property
    def _reserved(self) -> int:
        share = self._config.segment_bytes // SEGMENT_SHARE_KEPT
        return self._kept_free() + SNAPSHOTS_KEPT * self._snapshot_bytes + share

    def _update_warning(self, space: DiskSpace) -> None:
        watermark, used, previous_warning = self._watermark(), space.used_ratio, self.warning
        node_id = self._config.node_id
        if used > watermark:
            self.warning = (
                f"the disk of {node_id} is {used:.0%} full, above disk_max_used_ratio = {watermark:g}: the file system "
                f"of {self._config.data_dir or 'its log'} has {space.free_bytes >> 20} MiB left; make room there, or "
                "sends are refused once it is full"
            )
        elif used <= watermark - WARNING_HYSTERESIS or watermark >= 1.0:
            self.warning = None
        if self.warning is not None and previous_warning is None:
            logger.warning("node=%s event=disk_above_watermark reason=%r", node_id, self.warning)
        elif self.warning is None and previous_warning is not None:
            logger.info("node=%s event=disk_below_watermark used=%.2f watermark=%g", node_id, used, watermark)


class Warnings:
    """Logs lasting differences. `configured` are the node ids of the configuration, including this node's."""

    def __init__(self, node_id: str, configured: frozenset[str]) -> None:
        self._node_id = node_id
        self._configured = configured
        self._lasting_since: dict[str, float] = {}
        self._logged_at: dict[str, float] = {}

    def log_due(self, engine: Engine, now: float) -> None:
        """Log the warnings that are due at `now`, in monotonic seconds."""
        warnings = self._clock_warnings(engine, now) | self._member_warnings(engine)
        self._lasting_since = {key: self._lasting_since.get(key, now) for key in warnings}
        for key, text in warnings.items():
            logged_at = self._logged_at.get(key)
            if now - self._lasting_since[key] >= LASTING_S and (logged_at is None or now - logged_at >= REPEAT_S):
                self._logged_at[key] = now
                logger.warning("node=%s %s", self._node_id, text)

    def _clock_warnings(self, engine: Engine, now: float) -> dict[str, str]:
        """Return a warning for each member whose clock is far off this leader's. A follower knows no clocks."""
        warnings: dict[str, str] = {}
        for peer, progress in engine.progress.items():
            ahead_ms = clock_ahead_ms(progress, now, engine.wall_ms)
            if ahead_ms is not None and abs(ahead_ms) > MAX_CLOCK_DIFFERENCE_MS:
                reason = (
                    f"its clock is {abs(ahead_ms)} ms "
                    f"{'ahead of' if ahead_ms > 0 else 'behind'} the clock of leader {self._node_id}, at most "
                    f"{MAX_CLOCK_DIFFERENCE_MS} ms expected; messages are stamped by the leader's clock: synchronise "
                    "the machines' clocks"
                )
                warnings[f"clock {peer.node_id}"] = f"event=clocks_differ peer={peer.node_id} reason={reason!r}"
        return warnings

    def _member_warnings(self, engine: Engine) -> dict[str, str]:
        members = frozenset(str(member.node_id) for member in engine.membership.members)
        if not members or members == self._configured or engine.leader is None:
            return {}
        reason = (
            f"the configuration of {self._node_id} names the nodes "
            f"{', '.join(sorted(self._configured))}, the group's members by its log are "
            f"{', '.join(sorted(members))}: the log counts; correct the peers of {self._node_id}, or start the "
            "missing node, which then joins"
        )
        return {f"members {sorted(members)}": f"event=members_differ reason={reason!r}"}
