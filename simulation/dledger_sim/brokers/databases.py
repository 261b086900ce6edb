"""Databases of simulated nodes, which outlive their processes."""

from __future__ import annotations

from random import Random

from dledger.testing.disk import SimDisk
from dledger_broker.testing.databases import MemoryDatabases


class NodeDatabases:
    """Those of all nodes, by the disks that they are on."""

    def __init__(self) -> None:
        self._by_disk: dict[SimDisk, MemoryDatabases] = {}

    def of(self, disk: SimDisk, random: Random) -> MemoryDatabases:
        """What a process that starts finds on its disk: it may lack the last transactions of the one before."""
        databases = self._by_disk.setdefault(disk, MemoryDatabases())
        databases.crash(random)
        return databases
