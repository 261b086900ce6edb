"""Overview: whether the cluster is healthy, what is wrong and what to do, rates, and the groups that are late."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.health.judge import judge
from dledger_admin.health.reports import ClusterHealth, Limits
from dledger_admin.operations import consumer_groups
from dledger_admin.operations.broker_groups import BrokerGroup, broker_groups
from dledger_admin.operations.clusters import describe_health
from dledger_admin.operations.consumer_groups import GroupLine
from dledger_client import ClientError

from ..history import Rates
from ..pages import AnyChange, AnyLook, Call, Look, Nothing

LATE_SECONDS: Final = 5.0
"""Time for which the lag of the groups is shared. Two requests go to each leader for each group."""
MAX_GROUPS: Final = 200
"""Maximum number of consumer groups whose lag the overview shows."""
_LATEST: Final = 5


class Overview(msgspec.Struct, frozen=True):
    """A cluster at a glance. Rates count messages per second, over the last ten seconds.

    `rates` are those since the console started. `late` are the groups that are behind, the latest first. `unseen` says
    why they are not known, "" if they are.
    """

    sentence: str
    health: ClusterHealth
    groups: list[BrokerGroup]
    stored_per_s: float
    delivered_per_s: float
    rates: Rates
    late: list[GroupLine]
    unseen: str


async def overview(call: Call, _: Nothing) -> Overview:
    """Return the overview."""
    survey = await call.cluster.survey(call.access)
    health, groups = judge(survey, Limits()), broker_groups(survey, Limits())
    late, unseen = await _late_groups(call, groups)
    may_see = any(node.term is not None for node in health.nodes)
    return Overview(
        describe_health(health),
        health,
        groups,
        sum(group.stored_per_s for group in groups),
        sum(group.delivered_per_s for group in groups),
        call.cluster.history.total_rates() if may_see else Rates(),
        late,
        unseen,
    )


async def _late_groups(call: Call, groups: list[BrokerGroup]) -> tuple[list[GroupLine], str]:
    if not all(group.leader for group in groups) or not groups:
        return [], "The lag of consumer groups is not known while a broker group has no leader."

    async def lines() -> list[GroupLine]:
        configs = await call.admin.groups()
        return await consumer_groups.lines_of(call.admin, dict(list(configs.items())[:MAX_GROUPS]))

    try:
        found = await call.cluster.share(("late", call.access.credentials), LATE_SECONDS, lines)
    except ClientError as error:
        return [], f"The lag of consumer groups is not known: {error}"
    late = sorted((line for line in found if line.lag), key=lambda line: -line.lag)[:_LATEST]
    return late, f"Only the first {MAX_GROUPS} groups were asked." if len(found) == MAX_GROUPS else ""


LOOKS: Final[list[AnyLook]] = [
    Look(
        path="/",
        summary="Health, rates and late consumer groups of the cluster.",
        wanted=Nothing,
        answer=overview,
        template="overview.html",
        section="overview",
        is_live=True,
    )
]
CHANGES: Final[list[AnyChange]] = []
