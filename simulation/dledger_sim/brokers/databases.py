"""Databases of simulated nodes, which outlive their processes."""

from __future__ import annotations

from random import Random

from dledger.testing.disk import SimDisk
from dledger_broker.testing.databases import MemoryDatabases


class NodeDatabases:
    """Databases of all nodes, by disk."""

    def __init__(self) -> None:
        self._by_disk: dict[SimDisk, MemoryDatabases] = {}

    def of(self, disk: SimDisk, random: Random) -> MemoryDatabases:
        """Return the databases that a new process finds on its disk.

        They may lack the last transactions of the previous process.
        """
        databases = self._by_disk.setdefault(disk, MemoryDatabases())
        databases.crash(random)
        return databases
