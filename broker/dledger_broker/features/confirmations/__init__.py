"""Confirmations: a lease begins only once its messages have reached their client.

A client's heartbeats renew its lease through any proxy. So a lease that begins with the pop has a fault:

1. A proxy pops for a client under its lease, and is killed before the client has read the answer.
2. The client knows nothing of these messages. It sends its heartbeats through another proxy.
3. The lease is renewed for three hours, and nobody works on the messages meanwhile.

With confirmations such a pop is an ordinary one, which hides its messages for `pop.leasing.UNCONFIRMED_MS` at most.
The proxy confirms what the client has received, and the lease begins. Messages without a confirmation come again.

Start reading at `requests.py`. The leases themselves are those of the feature `leases`. This is a feature of its own
because groups know leases without it: an earlier version would stop at the command.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.confirmations.commands import CONFIRMATION_COMMANDS, NAME
from dledger_broker.features.confirmations.requests import ConfirmationRequests
from dledger_broker.features.confirmations.table import CONFIRMED
from dledger_broker.features.leases.requests import LeaseRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> ConfirmationRequests:
    times = context.parts[LeaseRequests].times
    return ConfirmationRequests(context.machine, context.clock, context.requests, times)


FEATURE: Final = Feature(name=NAME, commands=CONFIRMATION_COMMANDS, table=CONFIRMED, activated=True, build=_build)
