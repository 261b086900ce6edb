"""Summary of a run for its report, as plain values. Times are seconds since the run began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from dledger_chaos.checkers.base import Result, RunData, RunInfo, Verdict
from dledger_chaos.checkers.judge import overall
from dledger_chaos.checkers.recovery import client_gaps, failover_waits, percentile
from dledger_chaos.history import Event


class Fault(msgspec.Struct, frozen=True):
    """One fault that was injected; one that the target refused is among the notes.

    `end_s` is None if it was not healed, `gap_s` is the longest that a client waited meanwhile.
    """

    id: int
    name: str
    family: str
    nodes: list[str]
    begin_s: float
    end_s: float | None
    gap_s: float | None
    values: dict[str, object]


class Gaps(msgspec.Struct, frozen=True):
    """How long clients waited during faults of one name: `count` waits, of which `alone` under this fault only."""

    fault: str
    count: int
    alone: int
    p50_s: float
    p99_s: float
    max_s: float


class Counts(msgspec.Struct, frozen=True):
    """Operations of one workload by outcome."""

    workload: str
    ok: int
    fail: int
    info: int


class Summary(msgspec.Struct, frozen=True):
    """`report.json`. `messages` were acknowledged; `notes` are what the run itself had to say.

    `waits_s` are those of clients when a leader was killed and nothing else was wrong.
    """

    verdict: Result
    run: RunInfo
    seconds: float
    messages: int
    operations: list[Counts]
    checks: list[Verdict]
    faults: list[Fault]
    families: dict[str, int]
    gaps: list[Gaps]
    waits_s: list[float]
    notes: list[str]


def summarize(run: RunData, verdicts: Sequence[Verdict]) -> Summary:
    """Gather everything that a report says."""
    faults = _faults(run)
    return Summary(
        verdict=overall(verdicts),
        run=run.info,
        seconds=(run.info.end_ns - run.info.begin_ns) / 1e9,
        messages=sum(1 for _ in run.messages.acknowledged()),
        operations=_counts(run),
        checks=sorted(verdicts, key=lambda verdict: ("invalid", "unknown", "valid").index(verdict.result)),
        faults=faults,
        families=dict(sorted(Counter(fault.family for fault in faults).items())),
        gaps=_gaps(run),
        waits_s=failover_waits(run),
        notes=[f"{_seconds(run, event):.1f} s: {event.name}" for event in run.events if event.kind == "note"],
    )


def _counts(run: RunData) -> list[Counts]:
    found = Counter((operation.workload, operation.outcome) for operation in run.operations)
    workloads = sorted({workload for workload, _ in found})
    return [Counts(name, found[name, "ok"], found[name, "fail"], found[name, "info"]) for name in workloads]


def _faults(run: RunData) -> list[Fault]:
    longest: dict[int, float] = {}
    for gap in client_gaps(run):
        longest[gap.fault_id] = max(gap.seconds, longest.get(gap.fault_id, 0.0))
    ended = [event for event in run.events if event.kind == "fault-end"]
    ends = {event.fields["id"]: _seconds(run, event) for event in ended}
    refused = {event.fields["id"] for event in ended if not event.fields.get("injected", True)}
    faults = []
    for event in run.events:
        if event.kind == "fault-begin" and event.fields["id"] not in refused:
            number = msgspec.convert(event.fields["id"], int)
            faults.append(
                Fault(
                    number,
                    event.name,
                    str(event.fields.get("class", "")),
                    msgspec.convert(event.fields.get("nodes", []), list[str]),
                    _seconds(run, event),
                    ends.get(number),
                    longest.get(number),
                    msgspec.convert(event.fields.get("fault", {}), dict[str, object]),
                )
            )
    return faults


def _gaps(run: RunData) -> list[Gaps]:
    gaps = client_gaps(run)
    found = []
    for name in sorted({gap.fault for gap in gaps}):
        seconds = [gap.seconds for gap in gaps if gap.fault == name]
        alone = sum(gap.alone for gap in gaps if gap.fault == name)
        found.append(Gaps(name, len(seconds), alone, percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)))
    return found


def _seconds(run: RunData, event: Event) -> float:
    return (event.time_ns - run.info.begin_ns) / 1e9
