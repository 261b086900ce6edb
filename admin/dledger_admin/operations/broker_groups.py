"""Broker groups: the role, the log and the progress of every node, and what is wrong with the group."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..health.groups import GroupView, group_views
from ..health.judge import judge, next_trim, survival
from ..health.reports import ClusterHealth, Limits, NodeHealth, Problem, Survey


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a broker group. None is what nobody could tell.

    `commit`, `applied`, `last_index` and `match_index` are indexes of entries; `match_index` is the last entry that the
    leader knows the node to have. `first_position`, `log_end` and `durable_position` are bytes of the log. `contact_ms`
    is the time since the node's last answer to its leader. `sync_ms` is the mean time of a sync since the node's start.

    `snapshots` counts those that the node keeps, of which the newest is at `snapshot_position`. `verified_position` is
    where the scrub is in its present or last round, None before the first. `scrub_rounds` are the rounds since the
    node's start. `repairs` counts the ranges that were healed since then.
    """

    node: str
    address: str | None
    role: str
    term: int | None = None
    last_index: int | None = None
    commit: int | None = None
    applied: int | None = None
    match_index: int | None = None
    lag: int | None = None
    first_position: int | None = None
    log_end: int | None = None
    durable_position: int | None = None
    contact_ms: int | None = None
    clock_ahead_ms: int | None = None
    disk_used: float | None = None
    elections: int | None = None
    sync_ms: float | None = None
    snapshots: int | None = None
    snapshot_position: int | None = None
    verified_position: int | None = None
    scrub_rounds: int | None = None
    repairs: int | None = None
    corrupt_bytes: int | None = None
    rotten_snapshots: int | None = None
    version: str | None = None
    uptime_s: int | None = None


class BrokerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A broker group: its leader, its nodes, and what is wrong.

    `voters` and `learners` are its members. `stored_per_s` and `delivered_per_s` count messages of the last ten
    seconds. `survival` says how many more failures it survives, `retention` what is deleted next, and when.
    """

    name: str
    leader: str | None
    term: int | None
    voters: list[str]
    learners: list[str]
    replicas: list[Replica]
    problems: list[Problem]
    survival: str | None
    retention: str | None
    stored_per_s: float
    delivered_per_s: float


def broker_groups(survey: Survey, limits: Limits) -> list[BrokerGroup]:
    """Return every broker group that a name server or a node knows of, by name."""
    health = judge(survey, limits)
    return [_describe(group, health, limits) for group in group_views(survey)]


def _describe(group: GroupView, health: ClusterHealth, limits: Limits) -> BrokerGroup:
    rows = {row.node: row for row in health.nodes if row.broker_group == group.name and row.node is not None}
    replicas = [_replica(group, row, node_id) for node_id, row in rows.items()]
    subjects = {group.name, *rows, *group.strangers}
    spare, trim = survival(group, limits), next_trim(group)
    return BrokerGroup(
        name=group.name,
        leader=None if group.leader is None else group.leader.node_id,
        term=max((replica.term for replica in replicas if replica.term is not None), default=None),
        voters=group.voters,
        learners=group.learners,
        replicas=replicas,
        problems=[problem for problem in health.problems if problem.subject in subjects],
        survival=None if spare is None else spare.text,
        retention=None if trim is None else trim.text,
        stored_per_s=_sum(answer.stored_per_s for answer in group.answers.values()),
        delivered_per_s=_sum(answer.delivered_per_s for answer in group.answers.values()),
    )


def _replica(group: GroupView, row: NodeHealth, node_id: str) -> Replica:
    report, peer = group.report(node_id), group.peer(node_id)
    leads = report is not None and report is group.leader
    return Replica(
        node=node_id,
        address=row.address,
        role=row.role,
        term=row.term,
        last_index=None if report is None else report.last_index,
        commit=row.commit,
        applied=None if report is None else report.applied_index,
        match_index=report.last_index if report is not None and leads else None if peer is None else peer.match_index,
        lag=row.lag,
        first_position=None if report is None else report.first_position,
        log_end=None if report is None else report.last_position,
        durable_position=None if report is None else report.durable_position,
        contact_ms=None if peer is None else peer.contact_ms,
        clock_ahead_ms=row.clock_ahead_ms,
        disk_used=row.disk_used,
        elections=None if report is None else report.elections,
        sync_ms=None if report is None or not report.syncs else report.sync_seconds * 1000 / report.syncs,
        snapshots=None if report is None else report.snapshots,
        snapshot_position=None if report is None or report.snapshot_position < 0 else report.snapshot_position,
        verified_position=None if report is None or report.verified_position < 0 else report.verified_position,
        scrub_rounds=None if report is None else report.scrub_rounds,
        repairs=None if report is None else report.repairs,
        corrupt_bytes=None if report is None else report.corrupt_bytes,
        rotten_snapshots=None if report is None else report.rotten_snapshots,
        version=row.version,
        uptime_s=row.uptime_s,
    )


def _sum(rates: Iterable[float | None]) -> float:
    return sum((rate for rate in rates if rate is not None), 0.0)
