"""Files of other programs on the nodes' disks: they come and go, and take any share of a file system.

Retention must not delete unexpired messages because of them, unless the group is configured to delete the oldest.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

from dledger_broker.features.retention.job import CHECK_PERIOD_S
from dledger_broker.features.retention.policy import MAX_SILENCE_MS
from dledger_sim.log.group import SimGroup

PAUSE_S: Final = 3.0
"""Mean time between two changes, in seconds."""
CAPACITY_BYTES: Final = 64 << 20
"""Size of a file system that others use as well, in bytes."""
RATIOS: Final = (0.2, 0.7, 0.77, 0.82, 0.88, 0.97, 0.9995, 1.0)
"""Used shares: below and above the watermark and the threshold of `delete-oldest`, up to a full disk."""
NOTICED_S: Final = CHECK_PERIOD_S + MAX_SILENCE_MS / 1000 + 2.0
"""Maximum time for which a leader may act on old knowledge of a disk, in seconds."""


class Crowd:
    """Other programs that fill the disks of a group, on all nodes or on one."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self.over = False
        self._random = random
        self._counts = counts
        self._crowded: dict[float, float] = {}
        self._group: SimGroup | None = None

    def begin(self, group: SimGroup) -> None:
        """Start to fill disks."""
        self._group = group
        group.scheduler.after(self._random.expovariate(1 / PAUSE_S), self._change)

    def stop(self) -> None:
        """Remove all files of others."""
        self.over = True
        for node in self._group.nodes.values() if self._group is not None else ():
            node.disk.crowd(0.0, CAPACITY_BYTES)

    def was_above(self, ratio: float) -> bool:
        """Return whether a leader may believe that a disk is fuller than a share."""
        if self._group is None:
            return False
        now = self._group.scheduler.now
        self._note(self._group)
        return any(now < until for found, until in self._crowded.items() if found > ratio)

    def _note(self, group: SimGroup) -> None:
        for node in group.nodes.values():
            self._crowded[node.disk.others_ratio] = group.scheduler.now + NOTICED_S

    def _change(self) -> None:
        group, random = self._group, self._random
        if self.over or group is None:
            return
        self._note(group)
        ratio = random.choice(RATIOS)
        names = list(group.settings.names)
        for name in names if random.random() < 0.5 else [random.choice(names)]:
            disk = group.nodes[name].disk
            if not disk.is_full:
                disk.crowd(ratio, CAPACITY_BYTES)
                group.disks_crowded = True
                self._counts["disk filled by others"] += ratio >= 1.0
                self._counts["disk above the watermark"] += ratio > 0.75
        self._note(group)
        group.scheduler.after(random.expovariate(1 / PAUSE_S), self._change)
