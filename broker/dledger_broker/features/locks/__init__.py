"""Queue locks: only one member of a consumer group at a time consumes a locked queue, which preserves message order.

- `table.py` has the replicated owner of each lock.
- `leases.py` has the time until which an owner must renew. It is not replicated; only the leader knows it.
- `changes.py` has the changes that this leader has proposed.
- `requests.py` has the request codes.
- `job.py` ends locks whose leases have expired.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.features.locks.leases import Leases
from dledger_broker.features.locks.requests import LockRequests
from dledger_broker.features.locks.table import LOCK_COMMANDS, LOCKS, NAME
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> LockRequests:
    machine = context.machine
    changes = LockChanges(machine, context.env, Leases())
    groups = context.parts[GroupRequests].proposals
    return LockRequests(
        machine, changes, context.env, context.group, context.counters, context.requests, groups, context.live
    )


FEATURE: Final = Feature(name=NAME, commands=LOCK_COMMANDS, table=LOCKS, activated=True, build=_build)
