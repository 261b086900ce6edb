"""Check of grey nodes: a node that is slow but alive delays clients only for a short time."""

from __future__ import annotations

from typing import Final

from dledger_chaos.faults.grey import NAMES

from .base import Findings, Judgement, RunData
from .recovery import client_gaps, percentile, send_latencies

BOUND_S: Final = 5.0
"""Maximum time between two acknowledgements of one client."""


def measured(run: RunData) -> bool:
    """Return True if clients sent beside a grey node."""
    return any(gap.fault in NAMES for gap in client_gaps(run))


def beside_a_grey_node(run: RunData) -> Judgement:
    """Check that sends continue beside a node that is ten times slower, or that another node becomes leader."""
    findings = Findings()
    gaps = [gap for gap in client_gaps(run) if gap.fault in NAMES]
    for gap in gaps:
        if gap.seconds > BOUND_S:
            findings.violation(f"{gap.client} waited {gap.seconds:.1f} s under {gap.fault} (fault {gap.fault_id})")
    figures: dict[str, float] = {}
    if gaps:
        figures["max_s"] = round(max(gap.seconds for gap in gaps), 2)
    for fault, latencies_ms in sorted(send_latencies(run).items()):
        if fault in NAMES:
            figures[f"{fault}_p50_ms"] = round(percentile(latencies_ms, 0.5), 1)
            figures[f"{fault}_p99_ms"] = round(percentile(latencies_ms, 0.99), 1)
    return findings.judged(len(gaps), "waits beside a grey node", bound_s=BOUND_S, **figures)
