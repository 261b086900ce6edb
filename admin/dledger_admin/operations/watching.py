"""Glance at a whole cluster, again and again: nodes with rates and sync times, late consumer groups, problems."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from dledger_client import Admin, ClientError

from ..health.groups import GroupView, group_views
from ..health.judge import judge
from ..health.reports import ClusterHealth, Limits, NodeHealth, NodeReport, Problem, Survey
from .access import Access
from .clusters import describe_health, look
from .consumer_groups import lines_of

MAX_GROUPS: Final = 200
"""Maximum number of consumer groups whose lag is asked for, two requests each."""
LAG_SECONDS: Final = 3.0
"""Time limit for the lag of all groups. A cluster without a leader would take longer."""


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `lag` counts entries, rates count messages of the last ten seconds, None is what nobody could tell.

    `sync_ms` is the mean time of a sync of the log between two glances, or since the node's start in the first one.
    `syncs_per_s` is None in the first one.
    """

    broker_group: str
    node: str | None
    address: str | None
    role: str
    term: int | None
    lag: int | None
    stored_per_s: float | None
    delivered_per_s: float | None
    sync_ms: float | None
    syncs_per_s: float | None
    disk_used: float | None


class LateGroup(msgspec.Struct, frozen=True):
    """A consumer group, its members, and the number of messages that it is behind."""

    group: str
    members: int
    lag: int


class Glance(msgspec.Struct, frozen=True):
    """A cluster at one moment. `late` are the groups with a lag, the latest first.

    `unseen` says why the lag of some groups is not known, "" if it is. `sentence` says how the cluster is.
    `stored_per_s` and `delivered_per_s` are sums over all nodes.
    """

    at_ms: int
    sentence: str
    stored_per_s: float
    delivered_per_s: float
    nodes: list[NodeLine]
    problems: list[Problem]
    late: list[LateGroup]
    unseen: str


class Watch:
    """Looks at a cluster; remembers the glance before, so that sync times are those of the time between."""

    def __init__(self, access: Access, admin: Admin) -> None:
        self._access = access
        self._admin = admin
        self._before: dict[str, tuple[float, NodeReport]] = {}

    async def look(self) -> Glance:
        """Return how everything is now. Servers that do not answer are named in it."""
        survey, (late, unseen) = await asyncio.gather(look(self._access), self._late_groups())
        now = time.monotonic()
        glance = make_glance(survey, late, unseen, self._before, now)
        self._before = {
            node_id: (now, report)
            for view in group_views(survey)
            for node_id in view.node_ids
            if (report := view.report(node_id)) is not None
        }
        return glance

    async def _late_groups(self) -> tuple[list[LateGroup], str]:
        try:
            async with asyncio.timeout(LAG_SECONDS):
                groups = await self._admin.groups()
                lines = await lines_of(self._admin, dict(list(groups.items())[:MAX_GROUPS]))
        except TimeoutError:
            return [], f"the lag of consumer groups is not known: no answer within {LAG_SECONDS:.0f} s"
        except ClientError as error:
            return [], f"the lag of consumer groups is not known: {error}"
        late = [LateGroup(line.group, line.members, line.lag) for line in lines if line.lag]
        unseen = f"only the first {MAX_GROUPS} of {len(groups)} groups were asked" if len(groups) > MAX_GROUPS else ""
        return sorted(late, key=lambda line: (-line.lag, line.group)), unseen


def make_glance(
    survey: Survey, late: list[LateGroup], unseen: str, before: dict[str, tuple[float, NodeReport]], now: float
) -> Glance:
    """Return the glance of a survey. `before` has the report of each node in the glance before, with its time in s."""
    health = judge(survey, Limits())
    views = {view.name: view for view in group_views(survey)}
    nodes = [_make_line(row, views[row.broker_group], before, now) for row in health.nodes]
    return Glance(
        time.time_ns() // 10**6,
        _describe(health),
        sum(node.stored_per_s or 0.0 for node in nodes),
        sum(node.delivered_per_s or 0.0 for node in nodes),
        nodes,
        health.problems,
        late,
        unseen,
    )


def _describe(health: ClusterHealth) -> str:
    if not any(health.name_servers.values()):
        return "Not healthy: no name server answers, so the nodes are not known"
    return describe_health(health)


def _make_line(row: NodeHealth, view: GroupView, before: dict[str, tuple[float, NodeReport]], now: float) -> NodeLine:
    answer = view.answers.get(row.node or "")
    report = view.report(row.node or "")
    sync_ms = syncs_per_s = None
    if report is not None and report.syncs:
        sync_ms = report.sync_seconds * 1000 / report.syncs
        earlier = before.get(report.node_id)
        if earlier is not None and earlier[1].syncs <= report.syncs and now > earlier[0]:
            syncs = report.syncs - earlier[1].syncs
            syncs_per_s = syncs / (now - earlier[0])
            sync_ms = (report.sync_seconds - earlier[1].sync_seconds) * 1000 / syncs if syncs else None
    return NodeLine(
        broker_group=row.broker_group,
        node=row.node,
        address=row.address,
        role=row.role,
        term=row.term,
        lag=row.lag,
        stored_per_s=None if answer is None else answer.stored_per_s,
        delivered_per_s=None if answer is None else answer.delivered_per_s,
        sync_ms=sync_ms,
        syncs_per_s=syncs_per_s,
        disk_used=row.disk_used,
    )
