"""Assignments: which queues of a topic a member of a consumer group is to consume, and whether it pulls or pops them.

`requests.py` takes the requests, `choosing.py` shares the queues, `table.py` has what is replicated: how groups consume
topics, as far as somebody said so. Start reading in `requests.py`.
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
