"""Queue locks: one member of a consumer group at a time consumes a queue, so that its messages keep their order.

A lock's owner is replicated (`table.py`); how long it may go on without renewing is for the leader alone to know
(`leases.py`). `changes.py` has what this leader is about to change, `requests.py` the request codes, `job.py` ends the
locks whose leases are over.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.client_membership.clients import ClientRequests
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
    locks = LockRequests(
        machine, changes, context.env, context.group, context.counters, context.requests, groups, context.live
    )
    context.parts[ClientRequests].on_unregister.append(locks.client_left)
    return locks


FEATURE: Final = Feature(name=NAME, commands=LOCK_COMMANDS, table=LOCKS, activated=True, build=_build)
