"""Faults as values: they are injected, and healed after their time.

`inject` returns False if the fault makes no sense now: the node is down already, there is no leader, …
"""

from __future__ import annotations

from typing import Final, Protocol

from dledger_sim.log.faults.disks import (
    BadSector,
    BitFlip,
    DiskError,
    FlipRecord,
    FullDisk,
    HangingCall,
    HangingDisk,
    LoseFiles,
    LoseSegment,
    OldCopy,
    SlowDisk,
    Usurped,
    Wipe,
)
from dledger_sim.log.faults.links import ClientCut, Cut, Deposed, Partition, SlowClose, SlowLinks, Throttle
from dledger_sim.log.faults.machines import ClockDrift, ClockJump, Crash, Kill, LongPause, Pause, PowerCut
from dledger_sim.log.faults.members import Change, Reinstall, Reshape
from dledger_sim.log.faults.operations import AcceptLoss, Drain, Remove, RollingRestart, Transfer, Trim
from dledger_sim.log.faults.views import RotView
from dledger_sim.log.group import SimGroup


class Fault(Protocol):
    """Fault that lasts for a while."""

    @property
    def duration_s(self) -> float: ...

    def inject(self, group: SimGroup) -> bool: ...

    def heal(self, group: SimGroup) -> None: ...


_TYPES: Final[tuple[type[Fault], ...]] = (
    Crash,
    Kill,
    PowerCut,
    Pause,
    LongPause,
    Partition,
    Cut,
    ClientCut,
    SlowLinks,
    Throttle,
    SlowClose,
    Deposed,
    SlowDisk,
    FullDisk,
    DiskError,
    BitFlip,
    LoseSegment,
    OldCopy,
    Wipe,
    LoseFiles,
    ClockJump,
    ClockDrift,
    Remove,
    Transfer,
    RollingRestart,
    Drain,
    Trim,
    Reshape,
    Reinstall,
    AcceptLoss,
    Usurped,
    FlipRecord,
    RotView,
    BadSector,
    HangingDisk,
    HangingCall,
)
FAULTS: Final = {fault.__name__: fault for fault in _TYPES}
"""All faults, by the name of the class."""

__all__ = [
    "FAULTS",
    "AcceptLoss",
    "BadSector",
    "BitFlip",
    "Change",
    "ClientCut",
    "ClockDrift",
    "ClockJump",
    "Crash",
    "Cut",
    "Deposed",
    "DiskError",
    "Drain",
    "Fault",
    "FlipRecord",
    "FullDisk",
    "HangingCall",
    "HangingDisk",
    "Kill",
    "LongPause",
    "LoseFiles",
    "LoseSegment",
    "OldCopy",
    "Partition",
    "Pause",
    "PowerCut",
    "Reinstall",
    "Remove",
    "Reshape",
    "RollingRestart",
    "RotView",
    "SlowClose",
    "SlowDisk",
    "SlowLinks",
    "Throttle",
    "Transfer",
    "Trim",
    "Usurped",
    "Wipe",
]
