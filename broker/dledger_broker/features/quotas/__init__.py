"""Quotas: how much an account, or a topic, may be sent in a second, and how much of it may be read.

They are in the log, set (20017) and told (20018) while nodes run. What is beyond one is held until there is room for it
again, for some seconds at most, and refused then. `table.py` has what is replicated, `requests.py` takes the
requests about quotas, `admission.py` says which sends and reads go on at once, `meters.py` how much has gone through:
start reading there.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.quotas.admission import READS, SENDS, Admission
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.quotas.table import NAME, QUOTA_COMMANDS, QUOTAS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> QuotaRequests:
    around = context.machine, context.env, context.group, context.requests
    return QuotaRequests(context.machine, context.requests, Admission(*around, SENDS), Admission(*around, READS))


FEATURE: Final = Feature(name=NAME, commands=QUOTA_COMMANDS, table=QUOTAS, activated=True, build=_build)
