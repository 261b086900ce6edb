"""Checker of how long clients had to wait while a fault was in force."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

from dledger_chaos.history import Event

from .base import Findings, Judgement, RunData

FAILOVER_FAULT: Final = "kill-leader"
P50_SECONDS: Final = 1.5
P99_SECONDS: Final = 3.0
CLIENTS: Final = ("one-0", "one-1")
"""Processes of the append workload that send one message after the other, a few milliseconds apart."""

SETTLE_S: Final = 2.0
"""A fault counts alone if no other was in force within this time before it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time between two acknowledgements of one client that reaches into a fault's time.

    A client that got none after the fault waited until it was told to stop.
    """

    fault: str
    fault_id: int
    client: str
    begin_ns: int
    seconds: float
    alone: bool
    """No other fault was in force from shortly before it to its end."""


def client_gaps(run: RunData) -> list[Gap]:
    """The gaps of all faults that were injected and have ended."""
    acknowledged = {
        client: sorted(
            operation.complete_ns or 0
            for operation in run.of("append", "send", outcome="ok")
            if operation.process == client
        )
        for client in CLIENTS
    }
    stopped = [event.time_ns for event in run.events if event.kind == "phase" and event.name == "final-reads"]
    spans = fault_spans(run.events)
    void = {event.fields["id"] for event in run.events if event.fields.get("injected") is False}
    gaps = []
    for number, (name, begin_ns, end_ns) in spans.items():
        if number in void:
            continue
        alone = not any(
            other != number and span[1] <= end_ns and span[2] >= begin_ns - SETTLE_S * 1e9
            for other, span in spans.items()
        )
        for client, times in acknowledged.items():
            first = max(0, bisect_left(times, begin_ns) - 1)
            last = bisect_left(times, end_ns) + 1
            inside = times[first:last]
            if inside and last > len(times):
                inside += stopped
            longest = max(((after - before, before) for before, after in pairwise(inside)), default=None)
            if longest is not None:
                gaps.append(Gap(name, number, client, longest[1], longest[0] / 1e9, alone))
    return gaps


def fault_spans(events: Sequence[Event]) -> dict[int, tuple[str, int, int]]:
    """Name, begin and end of every fault that has ended, by its id."""
    begins: dict[int, Event] = {}
    spans: dict[int, tuple[str, int, int]] = {}
    for event in events:
        if event.kind not in {"fault-begin", "fault-end"}:
            continue
        number = int(str(event.fields["id"]))
        if event.kind == "fault-begin":
            begins[number] = event
        elif number in begins:
            spans[number] = event.name, begins[number].time_ns, event.time_ns
    return spans


def times_of_faults(run: RunData) -> list[tuple[int, int]]:
    """Begin and end of every fault; one that has not ended goes on for ever."""
    spans = fault_spans(run.events)
    begins = [event for event in run.events if event.kind == "fault-begin"]
    return [spans.get(int(str(event.fields["id"])), ("", event.time_ns, sys.maxsize))[1:] for event in begins]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def failover_waits(run: RunData) -> list[float]:
    """How many seconds clients waited when a leader was killed while nothing else was wrong."""
    return [gap.seconds for gap in client_gaps(run) if gap.fault == FAILOVER_FAULT and gap.alone]


def failover_measured(run: RunData) -> bool:
    """Whether a leader was killed while nothing else was wrong."""
    return bool(failover_waits(run))


def failover(run: RunData) -> Judgement:
    """Clients wait at most 1.5 s (median) and 3 s (99 %) when a leader is killed and nothing else is wrong."""
    findings = Findings()
    seconds = failover_waits(run)
    if not seconds:
        return findings.judged(0, "kills of a leader with nothing else wrong")
    p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
    if p50 > P50_SECONDS:
        findings.violation(f"half of the clients waited {p50:.2f} s or longer")
    if p99 > P99_SECONDS:
        findings.violation(f"one in a hundred clients waited {p99:.2f} s or longer")
    return findings.judged(
        len(seconds), "waits", p50_s=round(p50, 3), p99_s=round(p99, 3), max_s=round(max(seconds), 3)
    )
