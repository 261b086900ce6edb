"""Resets: a consumer group continues at other offsets, whether its consumers run or not.

`table.py` has the replicated resets: the offset of each queue, until a consumer has seen its reset. `changes.py` knows
which consumers have seen a reset, and which commits count meanwhile: start reading there. `requests.py` has the request
codes. `consumers.py` notifies and queries the group's members.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.relay import Relay
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.resets.changes import ResetChanges
from dledger_broker.features.resets.consumers import GroupMembers
from dledger_broker.features.resets.requests import Resets
from dledger_broker.features.resets.table import NAME, RESET_COMMANDS, RESETS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> Resets:
    machine, env, parts = context.machine, context.env, context.parts
    members = GroupMembers(env, parts[Gossip], parts[Relay])
    offsets = parts[OffsetRequests]
    changes = ResetChanges(machine, env, context.config, context.counters, offsets.commits.buffer, members.is_member)
    return Resets(
        machine,
        env,
        context.group,
        context.config,
        context.requests,
        parts[GroupRequests].proposals,
        offsets,
        parts[PullRequests],
        parts[PopRequests],
        changes,
        members,
    )


FEATURE: Final = Feature(name=NAME, commands=RESET_COMMANDS, table=RESETS, activated=True, build=_build)
