"""Faults as values: injected, and healed after their time.

`inject` returns False if the fault makes no sense now (the node is down already, nobody leads, …).
"""

from __future__ import annotations

from typing import Final, Protocol

from dledger.sim.faults.disks import BitFlip, DiskError, FullDisk, LoseFiles, LoseSegment, OldCopy, SlowDisk, Wipe
from dledger.sim.faults.links import ClientCut, Cut, Partition, SlowLinks
from dledger.sim.faults.machines import ClockJump, Crash, Kill, Pause, PowerCut
from dledger.sim.faults.operations import Remove, Transfer, Trim
from dledger.sim.group import SimGroup


class Fault(Protocol):
    """Something that goes wrong for a while."""

    @property
    def duration_s(self) -> float: ...

    def inject(self, group: SimGroup) -> bool: ...

    def heal(self, group: SimGroup) -> None: ...


_TYPES: Final[tuple[type[Fault], ...]] = (
    Crash,
    Kill,
    PowerCut,
    Pause,
    Partition,
    Cut,
    ClientCut,
    SlowLinks,
    SlowDisk,
    FullDisk,
    DiskError,
    BitFlip,
    LoseSegment,
    OldCopy,
    Wipe,
    LoseFiles,
    ClockJump,
    Remove,
    Transfer,
    Trim,
)
FAULTS: Final = {fault.__name__: fault for fault in _TYPES}
"""Every fault by the name of its class."""

__all__ = [
    "FAULTS",
    "BitFlip",
    "ClientCut",
    "ClockJump",
    "Crash",
    "Cut",
    "DiskError",
    "Fault",
    "FullDisk",
    "Kill",
    "LoseFiles",
    "LoseSegment",
    "OldCopy",
    "Partition",
    "Pause",
    "PowerCut",
    "Remove",
    "SlowDisk",
    "SlowLinks",
    "Transfer",
    "Trim",
    "Wipe",
]
