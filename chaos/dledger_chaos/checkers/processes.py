"""Checks of the nodes as processes: whether they run, what they print, and what they use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from dledger_chaos.convergence import CONVERGE_S

from .base import Findings, Judgement, RunData

MAX_RESIDENT_BYTES: Final = 512 << 20
MAX_OPEN_FILES: Final = 512

_RECORD: Final = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3}Z? (?:level=)?(\w+) ")
_BAD: Final = re.compile(
    r"Traceback \(most recent call last\)|^Exception ignored in|was never retrieved$|^Fatal Python"
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """An error line that a node may print which one of these kinds of faults has hit, and why."""

    pattern: re.Pattern[str]
    kinds: frozenset[str]
    why: str


ALLOWED: Final = (
    Allowed(
        re.compile(r"event=(request_)?failed .*(Errno 5\b|Input/output error)"),
        frozenset({"write-fails", "fsync-fails"}),
        "a node whose disk fails says so and ends",
    ),
    Allowed(
        re.compile(r"event=corruption "),
        frozenset({"bit-rot", "bit-rot-stopped", "segment-truncated", "segment-deleted"}),
        "bytes that do not verify are announced before they are healed",
    ),
)


def unexpected_errors(run: RunData) -> Judgement:
    """No node prints an error or a traceback that no injected fault explains, and no name server any."""
    findings, lines = Findings(), 0
    struck = [event for event in run.events if event.kind == "fault-begin"]
    for node in run.info.nodes:
        kinds = {event.name for event in struck if node.node_id in msgspec.convert(event.fields["nodes"], list[str])}
        readable = False
        for name in node.logs:
            for record in _printed(run, name, findings):
                lines += 1
                readable = readable or _RECORD.match(record) is not None
                if _is_bad(record) and not _is_allowed(record, kinds):
                    findings.violation(f"{node.node_id}: {record[:300]}")
        if not readable:
            findings.doubt(f"{node.node_id} left no line of the log's layout")
    for name in run.info.other_logs:
        for record in _printed(run, name, findings):
            lines += 1
            if _is_bad(record):
                findings.violation(f"{name}: {record[:300]}")
    return findings.judged(lines, "log lines")


def ended(run: RunData) -> Judgement:
    """A node's process ends only if it is told to, or if a fault is in force over which it may stop by itself; a name
    server's never does.
    """
    findings = Findings()
    for event in run.events:
        if event.kind == "process" and event.name == "ended" and not event.fields.get("expected"):
            at_s = (event.time_ns - run.info.begin_ns) / 1e9
            findings.violation(
                f"{event.node} (process {event.fields.get('pid')}) ended by itself {at_s:.1f} s into the run"
            )
    started = [event.node for event in run.events if event.kind == "process" and event.name == "started"]
    _doubt_unseen(run, findings, started, "was never seen running")
    return findings.judged(len(started), "processes")


def recovered(run: RunData) -> Judgement:
    """Once everything is healed all nodes run, follow one leader and have applied what was committed, within 90 s.

    Of a run in which nothing struck, or in which clients got nothing done, nobody knows.
    """
    findings = Findings()
    phases = {event.name: event.time_ns for event in run.events if event.kind == "phase"}
    for event in run.events:
        if event.kind == "note" and event.fields.get("trouble"):
            findings.doubt(event.name)
    struck = any(event.kind == "fault-end" and event.fields.get("injected", True) for event in run.events)
    if run.info.faults and not struck:
        findings.doubt(f"none of the faults was injected: {', '.join(run.info.faults)}")
    end_ns = phases.get("final-reads", run.info.end_ns)
    worked = {one.workload for one in run.operations if one.outcome == "ok" and one.invoke_ns < end_ns}
    for workload in run.info.workloads:
        if workload not in worked:
            findings.doubt(f"the workload {workload} got nothing done")
    if "heal" not in phases:
        return findings.judged(0, "healed runs")
    if "converged" not in phases:
        findings.violation("the cluster did not become whole again")
        return findings.judged(1, "healed runs")
    seconds = (phases["converged"] - phases["heal"]) / 1e9
    if seconds > CONVERGE_S:
        findings.violation(f"the cluster was whole again after {seconds:.1f} s")
    return findings.judged(1, "healed runs", seconds=round(seconds, 2))


def resources(run: RunData) -> Judgement:
    """No node's memory or open files grow beyond a bound."""
    findings, resident, files = Findings(), 0, 0
    sampled: list[str] = []
    for event in run.events:
        if event.kind != "usage":
            continue
        sampled.append(event.node)
        bytes_now, files_now = int(str(event.fields["resident_bytes"])), int(str(event.fields["open_files"]))
        resident, files = max(resident, bytes_now), max(files, files_now)
        if bytes_now > MAX_RESIDENT_BYTES or files_now > MAX_OPEN_FILES:
            findings.violation(f"{event.node}: {bytes_now} bytes resident, {files_now} open files")
    _doubt_unseen(run, findings, sampled, "was never measured")
    return findings.judged(len(sampled), "samples", max_resident_bytes=resident, max_open_files=files)


def _doubt_unseen(run: RunData, findings: Findings, seen: Iterable[str], why: str) -> None:
    """Nothing is known of a node that the observer has not seen."""
    for node_id in sorted({node.node_id for node in run.info.nodes}.difference(seen)):
        findings.doubt(f"{node_id} {why}")


def _printed(run: RunData, name: str, findings: Findings) -> list[str]:
    """The records of a log file; none, and a doubt, if it cannot be read."""
    try:
        text = run.path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        findings.doubt(f"{name} cannot be read: {error.strerror}")
        return []
    return list(_log_records(text.splitlines()))


def _log_records(lines: Iterable[str]) -> Iterator[str]:
    """Log records with the lines that belong to them, such as a traceback."""
    record: list[str] = []
    for line in lines:
        if _RECORD.match(line) and record:
            yield "\n".join(record)
            record = []
        record.append(line)
    if record:
        yield "\n".join(record)


def _is_bad(record: str) -> bool:
    level = _RECORD.match(record)
    if level is not None and level[1] in {"ERROR", "CRITICAL"}:
        return True
    return any(_BAD.search(line) for line in record.splitlines())


def _is_allowed(record: str, kinds: set[str]) -> bool:
    return any(rule.pattern.search(record) and rule.kinds & kinds for rule in ALLOWED)
