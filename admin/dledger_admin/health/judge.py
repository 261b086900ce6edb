"""Judge of a cluster: what is wrong with it, from what its name servers and nodes told. Nothing is asked here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from .groups import LEADER_ID, GroupView, group_views
from .keeping import disk_warnings, next_trim
from .nodes import node_health, node_problems, stranger_health
from .reports import ClusterHealth, Limits, NodeHealth, Problem, Survey
from .survival import survival

CLUSTER: Final = "cluster"
"""Subject of problems of the whole cluster."""


def judge(survey: Survey, limits: Limits) -> ClusterHealth:
    """Return one line per node, and everything that is wrong."""
    groups = group_views(survey)
    rows: list[NodeHealth] = []
    problems = [
        Problem(name_server.address, f"does not answer: {name_server.error}")
        for name_server in survey.name_servers
        if name_server.error
    ]
    problems += _rival_problems(survey)
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
    if not groups and not all(name_server.error for name_server in survey.name_servers):
        problems.append(Problem(CLUSTER, "no broker group is registered: start a node of one"))
    problems += _version_problems(rows)
    return ClusterHealth(
        not problems,
        {name_server.address: name_server.error is None for name_server in survey.name_servers},
        rows,
        problems,
        [warning for group in groups for warning in disk_warnings(group, limits)],
        [line for group in groups if (line := next_trim(group)) is not None],
        [line for group in groups if (line := survival(group, limits)) is not None],
    )


def _group_problems(group: GroupView, survey: Survey) -> Iterator[Problem]:
    if group.leader is None:
        yield Problem(group.name, _explain_missing_leader(group))
        return
    address = group.addresses[group.leader.node_id]
    for name_server in survey.name_servers:
        listed = (
            name_server.groups[group.name].broker_addrs
            if name_server.groups is not None and group.name in name_server.groups
            else {}
        )
        if listed and listed.get(LEADER_ID) != address:
            listing = f"lists {listed[LEADER_ID]}" if LEADER_ID in listed else "lists nobody"
            leads = f"{group.leader.node_id} at {address} leads"
            text = f"{listing} as the leader of {group.name}, and {leads}: clients go astray"
            yield Problem(name_server.address, text)


def _rival_problems(survey: Survey) -> Iterator[Problem]:
    """Yield a problem for each pair of groups with one name."""
    for name_server in survey.name_servers:
        for name, other in sorted(name_server.refused.items()):
            listed = (name_server.groups or {}).get(name)
            cluster = "another cluster" if listed is None else f"cluster {listed.cluster}"
            yield Problem(
                name_server.address,
                f"two broker groups are called {name}: that of {cluster} has the name, that of cluster {other.cluster} "
                f"at {other.address} is refused; give one of them another broker_group, or have `dledger cluster "
                f"forget {name}` give the name to the other one",
            )


def _explain_missing_leader(group: GroupView) -> str:
    if not group.answers:
        if group.strangers:
            return "its leader is not known: none of its registered nodes tells how it is"
        return f"none of its nodes is registered: start them, or `dledger cluster forget {group.name}` if it is gone"
    unready_leader = next(
        (answer.report for answer in group.answers.values() if answer.report and answer.report.role == "leader"), None
    )
    if unready_leader is not None:
        leads = f"{unready_leader.node_id} leads in term {unready_leader.term}"
        return f"{leads} and takes no writes yet: too few voters confirm that"
    if not group.voters:
        return "no leader: its nodes wait for one that takes them in; start the one that the group was founded with"
    reports = (group.report(voter) for voter in group.voters)
    answering = sum(report is not None and report.voter for report in reports)
    counted = f"no leader: {answering} of {len(group.voters)} voters answer"
    needed = len(group.voters) // 2 + 1
    if answering < needed:
        return f"{counted}, {needed} are needed: start those that are down, or see `dledger node rescue`"
    return f"{counted}, which is enough: an election is under way, or they do not reach each other's peer ports"


def _version_problems(rows: Sequence[NodeHealth]) -> Iterator[Problem]:
    versions = Counter(row.version for row in rows if row.version is not None)
    if len(versions) > 1:
        text = ", ".join(f"{version} on {count} nodes" for version, count in sorted(versions.items()))
        yield Problem(CLUSTER, f"several versions run: {text.replace(' 1 nodes', ' 1 node')}")
