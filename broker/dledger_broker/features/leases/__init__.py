"""Leases of clients: messages that a client popped stay hidden while its heartbeats come, and for some time after.

A client that handles messages of unknown duration cannot choose an invisible time. It pops under a lease instead. Its
heartbeats renew the lease by the length that the pop asked for. Messages come again once the lease has run out, or
`MAX_LEASE_MS` after their pop. All messages of a client have one lease, so a renewal is one small row.

A lease is replicated, so it outlives the connection of the client, the proxy that popped for it, and the leader. Its
owner is a client id, with the account if there is one: clients of two accounts with one id are two clients.

Start reading at `requests.py`, which gives, renews and ends leases on the leader. `times.py` says how long a lease
hides a message. `commands.py` and `table.py` have the replicated state. Pops are a feature of their own (`pop`), which
asks this feature by `Leasing` and `HiddenByLease`.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.leases.commands import LEASE_COMMANDS, NAME
from dledger_broker.features.leases.requests import LeaseRequests
from dledger_broker.features.leases.table import LEASES
from dledger_broker.features.leases.times import LeaseTimes
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> LeaseRequests:
    pops = context.parts[PopRequests]
    return LeaseRequests(
        context.machine,
        context.env,
        context.group,
        context.clock,
        context.requests,
        pops.revivals.look_again,
        LeaseTimes(context.machine),
    )


FEATURE: Final = Feature(name=NAME, commands=LEASE_COMMANDS, table=LEASES, activated=True, build=_build)
