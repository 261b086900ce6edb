"""Waits for quotas of reads, on a node: none is longer than it may be, whichever leaders a read has waited at.

How old a read is goes with it from node to node. Its client has given up soon after the time for which it asked to wait
for messages, and as long as a read may wait for quotas.
"""

# ruff: noqa: SLF001 - what is watched is what is private

from __future__ import annotations

from dledger_broker.features.pulling.limits import MAX_SUSPEND_S
from dledger_broker.features.quotas.admission import READ_HOLD_S, Admission
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers_consume import PULL_SUSPEND
from dledger_sim.brokers.waiting import CLOCK_ERROR, LATE_S
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler


class QuotaWaits:
    """The reads that wait for quotas in one life of a node."""

    def __init__(self, life: Life, scheduler: Scheduler, reads: Admission) -> None:
        self._life = life
        self._scheduler = scheduler
        self._reads = reads

    def check(self) -> None:
        """Raise `Violation` if a read waits too long; a node that stood still may be late by that."""
        now, awake_s = self._life.environment.now(), self._scheduler.now - self._life.environment.paused_until
        for owner, meter in self._reads._meters.items():
            for read in meter.waiting:
                request = read.request
                age_s, patience_s = now - request.received, READ_HOLD_S + _polls_s(request)
                require(
                    min(age_s - patience_s * CLOCK_ERROR, awake_s) < LATE_S,
                    "a read waits for quotas no longer than its client expects, leaders before this one counted",
                    node=self._life.node.name,
                    owner=owner,
                    code=request.code,
                    age_s=age_s,
                    patience_s=patience_s,
                )


def _polls_s(request: Request) -> float:
    """How long a read asks to wait for messages."""
    ext = request.ext
    if request.code == RequestCode.POP_MESSAGE:
        asked_ms = int(ext["pollTime"])
    else:
        asked_ms = int(ext["suspendTimeoutMillis"]) if int(ext["sysFlag"]) & PULL_SUSPEND else 0
    return min(asked_ms / 1000, MAX_SUSPEND_S)
