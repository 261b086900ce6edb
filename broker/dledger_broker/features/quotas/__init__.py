"""Quotas: how much an account may send, or a topic be sent, per second, and how much of them may be read.

Quotas are in the log, and are set (20017) and listed (20018) while nodes run. A request beyond a quota is held for some
seconds at most, until there is room again, and is refused after that.

`table.py` has the replicated quotas, and `requests.py` takes the requests about quotas. `gate.py` decides which
sends and reads proceed at once. `meters.py` measures how much has gone through: start reading there.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.quotas.gate import READS, SENDS, QuotaGate
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.quotas.table import NAME, QUOTA_COMMANDS, QUOTAS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> QuotaRequests:
    around = context.machine, context.env, context.group, context.requests
    return QuotaRequests(context.machine, context.requests, QuotaGate(*around, SENDS), QuotaGate(*around, READS))


FEATURE: Final = Feature(name=NAME, commands=QUOTA_COMMANDS, table=QUOTAS, activated=True, build=_build)
