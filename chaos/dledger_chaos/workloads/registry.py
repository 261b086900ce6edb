"""The list of all workloads. The table in `chaos/README.md` has the same names and summaries."""

from __future__ import annotations

from typing import Final

from . import (
    append,
    assignments,
    broadcast,
    catalogue,
    consumers,
    cpp,
    delays,
    filtered,
    followers,
    grpc,
    locks,
    offsets,
    ordered,
    orderly,
    passing,
    pops,
    registers,
    replies,
    resets,
    retention,
    retries,
    transactions,
)
from .base import WorkloadEntry

WORKLOADS: Final[dict[str, WorkloadEntry]] = {
    module.ENTRY.name: module.ENTRY
    for module in (
        append,
        ordered,
        followers,
        consumers,
        offsets,
        catalogue,
        passing,
        retention,
        delays,
        retries,
        transactions,
        locks,
        orderly,
        pops,
        replies,
        resets,
        filtered,
        broadcast,
        assignments,
        grpc,
        cpp,
        registers,
    )
}
