"""Pulls: messages of a queue for a consumer, at once or when they arrive.

`requests.py` has the request codes, `reads.py` finds the messages, and `longpoll.py` holds pulls that wait.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> PullRequests:
    return PullRequests(
        context.machine,
        context.log,
        context.env,
        context.group,
        context.live,
        context.counters,
        context.requests,
        context.parts[Gossip],
        context.parts[OffsetRequests],
        context.parts[Readers],
        context.roles,
        context.parts[GroupRequests].proposals,
        context.parts[ClassFilters],
        context.access,
        context.parts[QuotaRequests].reads,
    )


FEATURE: Final = Feature(name="pulling", build=_build)
