"""Every workload there is."""

from __future__ import annotations

from typing import Final

from . import append, registers
from .base import WorkloadEntry

WORKLOADS: Final[dict[str, WorkloadEntry]] = {entry.name: entry for entry in (append.ENTRY, registers.ENTRY)}
