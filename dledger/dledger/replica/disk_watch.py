"""Watch over the file system of a replica's log.

It warns when the file system is nearly full, and reports when only privileged entries still fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dledger.config import ReplicaConfig
from dledger.store.disk import DiskSpace

SNAPSHOTS_KEPT = 4
"""Number of snapshots, each as large as the newest snapshot, for which space stays free."""
SEGMENT_SHARE_KEPT = 64
"""Divisor: one part of a segment in so many also stays free, for small files and a first snapshot."""
WARNING_HYSTERESIS = 0.01
"""Minimum distance below the watermark, as a share of the file system, at which the warning ends."""

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
