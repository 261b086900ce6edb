"""POP: members of a group take messages of any queue, each hidden from all other members for its invisible time.

A message that is not acknowledged within its invisible time is delivered again. Start reading in `table.py`.

- `commands.py`, `deliveries.py` and `table.py` have the replicated state. `changes.py` has the changes that this leader
  has proposed.
- `requests.py` takes pops. `choosing.py` and `reading.py` find the messages for them, `held.py` lets pops wait,
  `answers.py` builds the answers, and `counts.py` counts the deliveries of each message.
- `turns.py` spreads pops that search many queues over turns of the event loop.
- `acks.py` takes acknowledgements, and `resets.py` takes resets.
- `revival.py` delivers messages again, once they are due.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pop.acks import AckRequests
from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.choosing import Chooser
from dledger_broker.features.pop.commands import NAME, POP_COMMANDS
from dledger_broker.features.pop.counts import OrderedCounts
from dledger_broker.features.pop.held import HeldPops
from dledger_broker.features.pop.reading import PopReads
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.revival import Dues, Revivals
from dledger_broker.features.pop.shared_names import SharedNames
from dledger_broker.features.pop.table import POPPED
from dledger_broker.features.pulling.permits import ReaderGroups
from dledger_broker.features.pulling.subscriptions import Subscriptions
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> PopRequests:
    machine, env, live, clock, requests = (
        context.machine,
        context.env,
        context.live,
        context.clock,
        context.requests,
    )
    groups = context.parts[GroupRequests].proposals
    dues = Dues(env, clock, context.group)
    classes = context.parts[ClassFilters]
    changes, reads = PopChanges(machine, env), PopReads(machine, context.log, classes)
    offsets = context.parts[OffsetRequests]
    shared_names = SharedNames(machine, context.access)
    held = HeldPops(env, requests.held, requests.run)
    revivals = Revivals(machine, env, live.own, clock, dues, changes, reads, groups, shared_names, held)
    return PopRequests(
        machine,
        env,
        context.group,
        live,
        context.counters,
        requests,
        clock,
        changes,
        Chooser(machine, reads, changes, live, dues.is_due, env.random(), OrderedCounts(changes)),
        reads,
        ReaderGroups(live, context.group, requests, groups),
        Subscriptions(live, context.counters, context.parts[Gossip], classes),
        offsets.commits.buffer,
        held,
        AckRequests(machine, changes, clock, requests, held, revivals),
        revivals,
        shared_names,
        context.parts[QuotaRequests].reads,
    )


FEATURE: Final = Feature(name=NAME, commands=POP_COMMANDS, table=POPPED, activated=True, build=_build)
