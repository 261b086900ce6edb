"""Resets: a consumer group goes on elsewhere, whether its consumers run or not.

`table.py` has what is replicated: where each queue is reset to, until a consumer has seen it. `changes.py` knows who
has, and which commits count meanwhile: start reading there. `requests.py` has the request codes, `consumers.py` what
members are told and asked.
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
    return Resets(
        machine,
        context.group,
        context.config,
        context.requests,
        parts[GroupRequests].proposals,
        offsets,
        parts[PullRequests],
        parts[PopRequests],
        ResetChanges(machine, env, context.config, context.counters, offsets.commits.buffer, members.is_member),
        members,
    )


FEATURE: Final = Feature(name=NAME, commands=RESET_COMMANDS, table=RESETS, activated=True, build=_build)
