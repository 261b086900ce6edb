"""Checks of the nodes' processes: their log lines, their ends, their recovery, their memory and open files."""

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

_LOG_RECORD: Final = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3}Z? (?:level=)?(\w+) ")
_ERROR_LINE: Final = re.compile(
    r"Traceback \(most recent call last\)|^Exception ignored in|was never retrieved$|^Fatal Python"
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """An error line that a node may print if a fault of one of these kinds has hit it, and the reason."""

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
        frozenset({"bit-rot", "bit-rot-stopped", "segment-truncated", "segment-deleted", "read-fails"}),
        "bytes that do not verify are announced before they are healed",
    ),
    Allowed(
        re.compile(r"event=snapshot_(rotten|invalid|missed) "),
        frozenset({"snapshot-rot", "read-fails"}),
        "a snapshot that does not verify is announced before another replica's, or a later one, replaces it",
    ),
)


def unexpected_errors(run: RunData) -> Judgement:
    """Check that name servers print no error, and nodes none that no injected fault explains."""
    findings, lines = Findings(), 0
    struck = [event for event in run.events if event.kind == "fault-begin"]
    for node in run.info.nodes:
        kinds = {event.name for event in struck if node.node_id in msgspec.convert(event.fields["nodes"], list[str])}
        readable = False
        for name in node.logs:
            for record in _read_log_records(run, name, findings):
                lines += 1
                readable = readable or _LOG_RECORD.match(record) is not None
                if _is_error(record) and not _is_allowed(record, kinds):
                    findings.violation(f"{node.node_id}: {record[:300]}")
        if not readable:
            findings.doubt(f"{node.node_id} left no line of the log's layout")
    for name in run.info.other_logs:
        for record in _read_log_records(run, name, findings):
            lines += 1
            if _is_error(record):
                findings.violation(f"{name}: {record[:300]}")
    return findings.judged(lines, "log lines")


def ended(run: RunData) -> Judgement:
    """Check that a node's process ends only on request, or during a fault that allows it to stop.

    A name server's process never ends by itself.
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
    """Check that, within 90 s of healing, all nodes run, follow one leader and have applied all committed entries.

    The verdict is unknown for a run without faults, or one in which no operation of a client succeeded.
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
    busy_workloads = {one.workload for one in run.operations if one.outcome == "ok" and one.invoke_ns < end_ns}
    for workload in run.info.workloads:
        if workload not in busy_workloads:
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
    """Check that no node's memory or number of open files grows beyond a bound."""
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
    """Note a doubt about each node that is missing in `seen`."""
    for node_id in sorted({node.node_id for node in run.info.nodes}.difference(seen)):
        findings.doubt(f"{node_id} {why}")


def _read_log_records(run: RunData, name: str, findings: Findings) -> list[str]:
    """Return the records of a log file. If the file cannot be read, note a doubt and return none."""
    try:
        text = run.path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        findings.doubt(f"{name} cannot be read: {error.strerror}")
        return []
    return list(_split_records(text.splitlines()))


def _split_records(lines: Iterable[str]) -> Iterator[str]:
    """Yield log records with the lines that belong to them, such as a traceback."""
    record: list[str] = []
    for line in lines:
        if _LOG_RECORD.match(line) and record:
            yield "\n".join(record)
            record = []
        record.append(line)
    if record:
        yield "\n".join(record)


def _is_error(record: str) -> bool:
    level = _LOG_RECORD.match(record)
    if level is not None and level[1] in {"ERROR", "CRITICAL"}:
        return True
    return any(_ERROR_LINE.search(line) for line in record.splitlines())


def _is_allowed(record: str, kinds: set[str]) -> bool:
    return any(rule.pattern.search(record) and rule.kinds & kinds for rule in ALLOWED)
