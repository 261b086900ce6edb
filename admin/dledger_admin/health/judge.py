"""Judge of a cluster: what is wrong with it, from what its name servers and nodes told. Nothing is asked here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from .groups import LEADER_ID, GroupView, group_views
from .nodes import node_health, node_problems, stranger_health
from .reports import ClusterHealth, Limits, NodeHealth, Problem, Survey

CLUSTER: Final = "cluster"
"""Subject of what concerns everything."""


def judge(survey: Survey, limits: Limits) -> ClusterHealth:
    """Return one line per node, and everything that is wrong."""
    groups = group_views(survey)
    rows: list[NodeHealth] = []
    problems = [Problem(one.address, f"does not answer: {one.error}") for one in survey.name_servers if one.error]
    for group in groups:
        problems += _group_problems(group, survey)
        for node_id in group.node_ids:
            row = node_health(group, node_id)
            rows.append(row)
            problems += node_problems(group, row, survey, limits)
        for address in group.strangers:
            row, problem = stranger_health(group, address, survey)
            rows.append(row)
            problems.append(problem)
    if not groups and not all(one.error for one in survey.name_servers):
        problems.append(Problem(CLUSTER, "no broker group is registered: start a node of one"))
    problems += _version_problems(rows)
    return ClusterHealth(not problems, {one.address: one.error is None for one in survey.name_servers}, rows, problems)


def _group_problems(group: GroupView, survey: Survey) -> Iterator[Problem]:
    if group.leader is None:
        yield Problem(group.name, _why_nobody_leads(group))
        return
    address = group.addresses[group.leader.node_id]
    for one in survey.name_servers:
        listed = one.groups[group.name].broker_addrs if one.groups is not None and group.name in one.groups else {}
        if listed and listed.get(LEADER_ID) != address:
            found = f"lists {listed[LEADER_ID]}" if LEADER_ID in listed else "lists nobody"
            leads = f"{group.leader.node_id} at {address} leads"
            yield Problem(one.address, f"{found} as the leader of {group.name}, and {leads}: clients go astray")


def _why_nobody_leads(group: GroupView) -> str:
    if not group.answers:
        if group.strangers:
            return "no leader: none of its registered nodes tells how it is"
        return f"none of its nodes is registered: start them, or `dledger cluster forget {group.name}` if it is gone"
    waiting = next((one.report for one in group.answers.values() if one.report and one.report.role == "leader"), None)
    if waiting is not None:
        return f"{waiting.node_id} leads in term {waiting.term} and takes no writes yet: too few voters confirm that"
    if not group.voters:
        return "no leader: its nodes wait for one that takes them in; start the one that the group was founded with"
    answering = sum(voter in group.answers for voter in group.voters)
    counted = f"no leader: {answering} of {len(group.voters)} voters answer"
    needed = len(group.voters) // 2 + 1
    if answering < needed:
        return f"{counted}, {needed} are needed: start those that are down"
    return f"{counted}, which is enough: an election is under way, or they do not reach each other's peer ports"


def _version_problems(rows: Sequence[NodeHealth]) -> Iterator[Problem]:
    versions = Counter(row.version for row in rows if row.version is not None)
    if len(versions) > 1:
        text = ", ".join(f"{version} on {count} nodes" for version, count in sorted(versions.items()))
        yield Problem(CLUSTER, f"several versions run: {text.replace(' 1 nodes', ' 1 node')}")
