"""Assignments: the queues of a topic that each member of a consumer group consumes, and whether it pulls or pops them.

Start reading at `requests.py`, which handles the requests. `choosing.py` shares queues among members. `table.py`
replicates the request modes: how consumer groups consume topics, as set by an operator.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.topic_routes import TopicRoutes
from dledger_broker.features.assignments.requests import AssignmentRequests
from dledger_broker.features.assignments.table import NAME, REQUEST_MODE_COMMANDS, REQUEST_MODES
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> AssignmentRequests:
    return AssignmentRequests(
        context.machine,
        context.group,
        context.live,
        context.counters,
        context.requests,
        context.parts[Gossip],
        context.parts[TopicRoutes],
    )


FEATURE: Final = Feature(name=NAME, commands=REQUEST_MODE_COMMANDS, table=REQUEST_MODES, activated=True, build=_build)
