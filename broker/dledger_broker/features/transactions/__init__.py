"""Transactions: messages that consumers see once their producers commit them, and never if producers roll them back.

A producer sends a half, does its own work, and ends the half with 37. If a producer does not end its half, the leader
asks it for the outcome (39). RocketMQ's op records do not exist here: the table has the halves that have ended.

- `table.py` has the open halves, and the outcomes of the last halves that ended.
- `sends.py` checks new halves, and `units.py` stages them.
- `ends.py` commits halves and rolls them back.
- `checks.py` asks producers for outcomes, and finally gives halves up. `resuming.py` reopens a half that was given up
  (323).
- `proposed.py` has what this leader has in flight.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from dledger_broker.clients.relay import Relay
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.sending.single_sends import SingleSendUnits
from dledger_broker.features.transactions.checks import CheckBacks
from dledger_broker.features.transactions.ends import HalfEnds
from dledger_broker.features.transactions.listing import HalfListing
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.resuming import HalfResumption
from dledger_broker.features.transactions.sends import HalfSends
from dledger_broker.features.transactions.table import HALF_COMMANDS, HALVES, NAME
from dledger_broker.features.transactions.units import HalfUnits, ProposedHalves
from dledger_broker.kernel.parts import Context, Feature
from dledger_remoting.ids import UniqueKeyGenerator, offset_message_id_prefix


def _build(context: Context) -> Transactions:
    machine, requests, writer, config = context.machine, context.requests, context.writer, context.config
    live = context.live
    counters, store_host, clock = context.counters, context.store_host, context.clock
    proposed = ProposedHalves()
    keys = UniqueKeyGenerator(store_host.ip, os.getpid(), secrets.randbits(32))
    on_their_way = SingleSendUnits(context.env, config, counters, requests, offset_message_id_prefix(store_host))
    units = HalfUnits(machine, writer, context.env, on_their_way, proposed)
    sends = HalfSends(machine, requests, proposed, units, live, counters, keys, clock)
    checks = CheckBacks(machine, proposed, clock, context.parts[Relay], live)
    resumption = HalfResumption(machine, writer, requests, proposed, sends, clock, live)
    ends = HalfEnds(
        machine, writer, context.env, requests, proposed, context.access, context.parts[QuotaRequests].sends
    )
    listing = HalfListing(machine, requests)
    return Transactions(machine, clock, sends, units, ends, checks, resumption, listing)


FEATURE: Final = Feature(name=NAME, commands=HALF_COMMANDS, table=HALVES, activated=True, build=_build)
