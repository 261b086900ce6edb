"""Every workload there is."""

from __future__ import annotations

from typing import Final

from .base import WorkloadEntry

WORKLOADS: Final[dict[str, WorkloadEntry]] = {}
