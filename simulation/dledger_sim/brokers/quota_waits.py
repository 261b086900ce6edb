"""Judge of waits for read quotas on a node: no wait exceeds its limit, across all leaders at which a read has waited.

A forwarded read carries its age. Its limit is the time for which its client asked to wait for messages, plus the
maximum wait for quotas. The client gives up soon after that.
"""

# ruff: noqa: SLF001 - watches private names

from __future__ import annotations

from dledger_broker.features.pulling.limits import MAX_SUSPEND_S
from dledger_broker.features.quotas.gate import READ_HOLD_S, QuotaGate
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers_consume import PULL_SUSPEND
from dledger_sim.brokers.waiting import CLOCK_ERROR, LATE_S
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler


class QuotaWaits:
    """Reads that wait for quotas in one life of a node."""

    def __init__(self, life: Life, scheduler: Scheduler, reads: QuotaGate) -> None:
        self._life = life
        self._scheduler = scheduler
        self._reads = reads

    def check(self) -> None:
        """Raise `Violation` if a read waits too long. A paused node may be late by the pause."""
        now, awake_s = self._life.environment.now(), self._scheduler.now - self._life.environment.paused_until
        for owner, meter in self._reads._meters.items():
            for read in meter.waiting:
                request = read.request
                age_s, patience_s = now - request.received, READ_HOLD_S + _polls_s(request)
                require(
                    min(age_s - patience_s * CLOCK_ERROR, awake_s) < LATE_S,
                    "a read waits for quotas no longer than its client expects, including its waits at earlier leaders",
                    node=self._life.node.name,
                    owner=owner,
                    code=request.code,
                    age_s=age_s,
                    patience_s=patience_s,
                )


def _polls_s(request: Request) -> float:
    """Return the time for which a read asks to wait for messages, in seconds."""
    ext = request.ext
    if request.code == RequestCode.POP_MESSAGE:
        asked_ms = int(ext["pollTime"])
    else:
        asked_ms = int(ext["suspendTimeoutMillis"]) if int(ext["sysFlag"]) & PULL_SUSPEND else 0
    return min(asked_ms / 1000, MAX_SUSPEND_S)
