"""Figures of the timeline: throughput, latency and roles of nodes. Times are seconds since the run began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dledger_chaos.checkers.base import RunData
from dledger_chaos.checkers.messages import SINGLE_SENDS
from dledger_chaos.checkers.recovery import percentile
from dledger_chaos.history import Event, Operation

INTERVALS = 240
"""Number of intervals that a page can show side by side."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Figures of one interval: messages acknowledged per second, failed operations, latencies of sends in ms."""

    begin_s: float
    acknowledged_per_s: float
    failed_per_s: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time during which all samples of a node have the same role and term."""

    node: str
    role: str
    term: int
    begin_s: float
    end_s: float


def intervals(run: RunData, count: int = INTERVALS) -> list[Interval]:
    """Return the figures of `count` equal intervals of the run."""
    begin_ns, end_ns = run.info.begin_ns, max(run.info.end_ns, run.info.begin_ns + 1)
    width_ns = max(1, -(-(end_ns - begin_ns) // count))
    latencies: list[list[float]] = [[] for _ in range(count)]
    messages, failed = [0] * count, [0] * count
    for operation in run.operations:
        if operation.complete_ns is None or not begin_ns <= operation.complete_ns < end_ns:
            continue
        place = (operation.complete_ns - begin_ns) // width_ns
        size = _count_messages(operation)
        if operation.outcome != "ok":
            failed[place] += operation.f != "send-oneway"
        elif size:
            messages[place] += size
            latencies[place].append((operation.complete_ns - operation.invoke_ns) / 1e6)
    width_s = width_ns / 1e9
    return [
        Interval(
            place * width_s,
            messages[place] / width_s,
            failed[place] / width_s,
            percentile(found, 0.5) if found else None,
            percentile(found, 0.99) if found else None,
        )
        for place, found in enumerate(latencies)
    ]


def stretches(run: RunData) -> list[Stretch]:
    """Return the roles of every node over time, from its `status` samples. Starts and ends of processes divide them."""
    found: list[Stretch] = []
    nodes = sorted({event.node for event in run.events if event.node and event.kind in {"status", "process"}})
    for node in nodes:
        open_at: tuple[str, int, float] | None = None
        last_s = 0.0
        for event in run.events:
            if event.node != node or event.kind not in {"status", "process"}:
                continue
            at_s = (event.time_ns - run.info.begin_ns) / 1e9
            state = _get_state(event)
            if open_at is not None and state != open_at[:2]:
                found.append(Stretch(node, *open_at, at_s))
                open_at = None
            if open_at is None and state is not None:
                open_at = (*state, at_s)
            last_s = at_s
        if open_at is not None:
            found.append(Stretch(node, *open_at, last_s))
    return found


def nodes_of(found: Sequence[Stretch]) -> list[str]:
    """Return the nodes that have samples, sorted."""
    return sorted({stretch.node for stretch in found})


def _get_state(event: Event) -> tuple[str, int] | None:
    if event.kind == "process":
        return None
    return str(event.fields["role"]), msgspec.convert(event.fields["term"], int)


def _count_messages(operation: Operation) -> int:
    if operation.f in SINGLE_SENDS:
        return 1
    if operation.f == "send-batch" and isinstance(operation.value, list):
        return len(operation.value)
    return 1 if operation.workload == "registers" else 0
