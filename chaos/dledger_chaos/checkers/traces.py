"""Check of message traces: what they tell of sends is what producers were told."""

from __future__ import annotations

import msgspec

from dledger_chaos.workloads.filtered import NAME
from dledger_chaos.workloads.records import Traced

from .base import Findings, Judgement, RunData


def traced(run: RunData) -> Judgement:
    """No trace tells otherwise of a send than its answer. Traces may be missing: none of them is waited for."""
    findings, checked = Findings(), 0
    sends = {str(sent.value): sent for sent in run.of(NAME, "send")}
    reads = run.of(NAME, "read-traces")
    if not any(read.outcome == "ok" for read in reads):
        findings.doubt("the traces could not be read")
    for operation in run.of(NAME, "traced", outcome="ok"):
        checked += 1
        told = msgspec.convert(operation.value, Traced)
        sent = sends.get(operation.key)
        if sent is None:
            findings.violation(f"a trace tells of {operation.key}, which nobody sent")
        elif told.succeeded != (sent.outcome == "ok"):
            said = "succeeded" if told.succeeded else "failed"
            findings.violation(f"a trace says that the send of {operation.key} {said}, it ended as {sent.outcome}")
        elif told.succeeded and told.position != sent.extras.get("position"):
            findings.violation(
                f"a trace says that {operation.key} lies at byte {told.position}, its producer was told "
                f"{sent.extras.get('position')}"
            )
    return findings.judged(checked, "traces of sends", sends=len(sends))
