"""Check of the waits of clients while a fault was in force."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any, Final, cast

from dledger_chaos.history import Event

from .base import Findings, Judgement, RunData

FAILOVER_FAULT: Final = "kill-leader"
P50_SECONDS: Final = 1.5
P99_SECONDS: Final = 3.0
CLIENTS: Final = ("one-0", "one-1")
"""Names of the processes of the workload `append` that send one message after another, a few milliseconds apart."""

SETTLE_S: Final = 2.0
"""Minimum time in seconds without another fault before a fault, so that it counts as alone."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest wait of one client for an acknowledgement that overlaps with a fault.

    A client without an acknowledgement after the fault waited until it was stopped.
    """

    fault: str
    fault_id: int
    client: str
    begin_ns: int
    seconds: float
    alone: bool
    """True if no other fault was in force during the fault and `SETTLE_S` before it."""


def client_gaps(run: RunData) -> list[Gap]:
    """Return the gaps of all faults that were injected and have ended."""
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


def send_latencies(run: RunData) -> dict[str, list[float]]:
    """Return the latencies in ms of acknowledged single sends that began during a fault, by the fault's name."""
    void = {event.fields["id"] for event in run.events if event.fields.get("injected") is False}
    sends = sorted(
        (operation.invoke_ns, (operation.complete_ns or 0) - operation.invoke_ns)
        for operation in run.of("append", "send", outcome="ok")
        if operation.process in CLIENTS
    )
    begun = [invoke_ns for invoke_ns, _ in sends]
    latencies: dict[str, list[float]] = {}
    for number, (name, begin_ns, end_ns) in fault_spans(run.events).items():
        if number not in void:
            during = sends[bisect_left(begun, begin_ns) : bisect_left(begun, end_ns)]
            latencies.setdefault(name, []).extend(took_ns / 1e6 for _, took_ns in during)
    return {name: latencies_ms for name, latencies_ms in latencies.items() if latencies_ms}


def fault_spans(events: Sequence[Event]) -> dict[int, tuple[str, int, int]]:
    """Return name, begin and end of every fault that has ended, by its id."""
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


def struck_faults(events: Sequence[Event]) -> Iterator[tuple[Event, str, Mapping[str, Any]]]:
    """Yield the event, kind and values of each fault that began. Faults that struck together come one by one."""
    for event in events:
        if event.kind != "fault-begin":
            continue
        values = cast("Mapping[str, Any]", event.fields.get("fault", {}))
        if "kinds" not in values:
            yield event, event.name, values
            continue
        for kind, act in zip(values["kinds"], values["acts"], strict=True):
            yield event, kind, act["fault"]


def times_of_faults(run: RunData) -> list[tuple[int, int]]:
    """Return begin and end of every fault. A fault that has not ended has no upper bound."""
    spans = fault_spans(run.events)
    begins = [event for event in run.events if event.kind == "fault-begin"]
    return [spans.get(int(str(event.fields["id"])), ("", event.time_ns, sys.maxsize))[1:] for event in begins]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def failover_waits(run: RunData) -> list[float]:
    """Return the waits of clients in seconds when a leader was killed and no other fault was in force."""
    return [gap.seconds for gap in client_gaps(run) if gap.fault == FAILOVER_FAULT and gap.alone]


def failover_measured(run: RunData) -> bool:
    """Return True if a leader was killed while no other fault was in force."""
    return bool(failover_waits(run))


def failover(run: RunData) -> Judgement:
    """Check that clients wait at most 1.5 s (median) and 3 s (99 %) when only a leader is killed."""
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
