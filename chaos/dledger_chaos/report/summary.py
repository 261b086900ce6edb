"""Summary of a run for its report, as plain values. Times are seconds since the run began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from dledger_chaos.checkers.base import Result, RunData, RunInfo, Verdict
from dledger_chaos.checkers.judge import headline, overall, unjudged
from dledger_chaos.checkers.recovery import client_gaps, failover_waits, percentile, send_latencies
from dledger_chaos.history import Event


class Fault(msgspec.Struct, frozen=True):
    """One injected fault. Faults that the target refused are in the notes instead.

    `end_s` is None if the end was not recorded, `gap_s` is the longest wait of a client during the fault.
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
    """Waits of clients during faults of one name: `count` waits, `alone` of them under this fault only.

    `send_p50_ms` and `send_p99_ms` are latencies of acknowledged sends; None without such sends.
    """

    fault: str
    count: int
    alone: int
    p50_s: float
    p99_s: float
    max_s: float
    send_p50_ms: float | None = None
    send_p99_ms: float | None = None


class Counts(msgspec.Struct, frozen=True):
    """Operations of one workload by outcome."""

    workload: str
    ok: int
    fail: int
    info: int


class Summary(msgspec.Struct, frozen=True):
    """Content of `report.json`.

    `messages` is the number of acknowledged messages; `unjudged` of them were trimmed before any check could judge
    them. `headline` is the verdict with that number. `notes` are remarks of the run itself. `waits_s` are the waits of
    clients when a leader was killed and no other fault was in force.
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
    unjudged: int = 0
    headline: str = ""


def summarize(run: RunData, verdicts: Sequence[Verdict]) -> Summary:
    """Return the content of the report."""
    faults = _collect_faults(run)
    return Summary(
        verdict=overall(verdicts),
        run=run.info,
        seconds=(run.info.end_ns - run.info.begin_ns) / 1e9,
        messages=sum(1 for _ in run.messages.acknowledged()),
        operations=_count_operations(run),
        checks=sorted(verdicts, key=lambda verdict: ("invalid", "unknown", "valid").index(verdict.result)),
        faults=faults,
        families=dict(sorted(Counter(fault.family for fault in faults).items())),
        gaps=_collect_gaps(run),
        waits_s=failover_waits(run),
        unjudged=unjudged(verdicts),
        headline=headline(verdicts),
        notes=[f"{_to_seconds(run, event):.1f} s: {event.name}" for event in run.events if event.kind == "note"],
    )


def _count_operations(run: RunData) -> list[Counts]:
    found = Counter((operation.workload, operation.outcome) for operation in run.operations)
    workloads = sorted({workload for workload, _ in found})
    return [Counts(name, found[name, "ok"], found[name, "fail"], found[name, "info"]) for name in workloads]


def _collect_faults(run: RunData) -> list[Fault]:
    longest: dict[int, float] = {}
    for gap in client_gaps(run):
        longest[gap.fault_id] = max(gap.seconds, longest.get(gap.fault_id, 0.0))
    ended = [event for event in run.events if event.kind == "fault-end"]
    ends = {event.fields["id"]: _to_seconds(run, event) for event in ended}
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
                    _to_seconds(run, event),
                    ends.get(number),
                    longest.get(number),
                    msgspec.convert(event.fields.get("fault", {}), dict[str, object]),
                )
            )
    return faults


def _collect_gaps(run: RunData) -> list[Gaps]:
    gaps, latencies = client_gaps(run), send_latencies(run)
    found = []
    for name in sorted({gap.fault for gap in gaps}):
        seconds = [gap.seconds for gap in gaps if gap.fault == name]
        alone = sum(gap.alone for gap in gaps if gap.fault == name)
        waits = percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)
        sends = [percentile(latencies[name], share) for share in (0.5, 0.99)] if name in latencies else [None, None]
        found.append(Gaps(name, len(seconds), alone, *waits, *sends))
    return found


def _to_seconds(run: RunData, event: Event) -> float:
    return (event.time_ns - run.info.begin_ns) / 1e9
