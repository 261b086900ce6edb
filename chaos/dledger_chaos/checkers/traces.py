"""Check of message traces: they agree with the answers that producers got."""

from __future__ import annotations

import msgspec

from dledger_chaos.workloads.filtered import NAME
from dledger_chaos.workloads.records import Traced

from .base import Findings, Judgement, RunData


def traced(run: RunData) -> Judgement:
    """Check that no trace of a send contradicts its answer. Traces may be missing: nothing waits for them."""
    findings, checked = Findings(), 0
    sends = {str(sent.value): sent for sent in run.of(NAME, "send")}
    reads = run.of(NAME, "read-traces")
    if not any(read.outcome == "ok" for read in reads):
        findings.doubt("the traces could not be read")
    for operation in run.of(NAME, "traced", outcome="ok"):
        checked += 1
        trace = msgspec.convert(operation.value, Traced)
        sent = sends.get(operation.key)
        if sent is None:
            findings.violation(f"a trace tells of {operation.key}, which nobody sent")
        elif trace.succeeded != (sent.outcome == "ok"):
            reported = "succeeded" if trace.succeeded else "failed"
            findings.violation(f"a trace says that the send of {operation.key} {reported}, it ended as {sent.outcome}")
        elif trace.succeeded and trace.position != sent.extras.get("position"):
            findings.violation(
                f"a trace says that {operation.key} lies at byte {trace.position}, its producer was told "
                f"{sent.extras.get('position')}"
            )
    return findings.judged(checked, "traces of sends", sends=len(sends))
