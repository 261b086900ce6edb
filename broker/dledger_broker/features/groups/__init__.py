"""Consumer groups: their settings, the requests about them, and the retry topics of groups.

`table.py` has the replicated settings, `proposals.py` the changes that a leader proposes, `requests.py` the request
codes.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.groups.table import GROUP_COMMANDS, GROUPS
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> GroupRequests:
    proposals = GroupProposals(context.machine, context.parts[NamesMade])
    return GroupRequests(context.machine, context.group, context.announcements, context.requests, proposals)


FEATURE: Final = Feature(name="groups", commands=GROUP_COMMANDS, table=GROUPS, build=_build)
