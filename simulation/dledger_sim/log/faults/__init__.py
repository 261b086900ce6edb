"""Faults as values: injected, and healed after their time.

`inject` returns False if the fault makes no sense now (the node is down already, nobody leads, …).
"""

from __future__ import annotations

from typing import Final, Protocol

from dledger_sim.log.faults.disks import (
    BitFlip,
    DiskError,
    FlipRecord,
    FullDisk,
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
from dledger_sim.log.group import SimGroup


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
)
FAULTS: Final = {fault.__name__: fault for fault in _TYPES}
"""Every fault by the name of its class."""

__all__ = [
    "FAULTS",
    "AcceptLoss",
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
    "SlowClose",
    "SlowDisk",
    "SlowLinks",
    "Throttle",
    "Transfer",
    "Trim",
    "Usurped",
    "Wipe",
]
