"""Judge of a cluster: what is wrong with it, how many more failures its groups survive, and what retention takes next.

It judges by what name servers and nodes have told. Nothing is asked here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from .groups import LEADER_ID, GroupView, group_views
from .nodes import node_health, node_problems, stranger_health
from .reports import ClusterHealth, Limits, NodeHealth, Problem, Survey


def survival(group: GroupView, limits: Limits) -> Problem | None:
    """Return how many voters of a group work, and what the next failure does; None for a group without a leader."""
    if group.leader is None:
        return None
    working = len(working_voters(group, limits))
    spare = working - (len(group.voters) // 2 + 1)
    counted = f"{working} of {len(group.voters)} voters"
    if spare <= 0:
        return Problem(group.name, f"{counted}: the next failure stops writes")
    return Problem(group.name, f"{counted}: {spare} more {'failure is' if spare == 1 else 'failures are'} survived")


def working_voters(group: GroupView, limits: Limits) -> list[str]:
    """Return the voters of a group that would count for a majority."""
    return [voter for voter in group.voters if _is_working(group, voter, limits)]


def _is_working(group: GroupView, voter: str, limits: Limits) -> bool:
    """Return True if a voter would count for a majority: its leader hears from it, and the log lists it as a voter.

    A node that came back with an empty directory has the name of a voter, and is a blank learner.
    """
    report, peer = group.report(voter), group.peer(voter)
    if report is not None and (report.failure or not report.voter):
        return False
    if group.leader is not None and voter == group.leader.node_id:
        return True
    return peer is not None and peer.contact_ms <= limits.silence_ms


_FULL_PERMILLE: Final = 1000


def disk_warnings(group: GroupView, limits: Limits) -> Iterator[Problem]:
    """Yield a warning for each node whose disk is above its watermark, unless that is a problem already."""
    for node_id, answer in sorted(group.answers.items()):
        report = answer.report
        if report is None or not report.disk_warning or report.refusal:
            continue
        if report.disk_used_permille < limits.disk_used * _FULL_PERMILLE:
            yield Problem(node_id, report.disk_warning)


def next_trim(group: GroupView) -> Problem | None:
    """Return what retention takes next of a group, and when; None if its leader does not tell."""
    answer = group.answers.get(group.leader.node_id) if group.leader is not None else None
    if answer is None or "retention_next_bytes" not in answer.gauges:
        return None
    size, due_s, growth, is_held = (
        answer.gauges.get(f"retention_next_{name}", 0.0) for name in ("bytes", "due_seconds", "growth_bytes", "held")
    )
    if not size:
        return Problem(group.name, "retention takes nothing: the log has one segment, which is being written")
    when = []
    if due_s:
        at = datetime.fromtimestamp(due_s).astimezone().isoformat(timespec="seconds")
        when.append(f"at {at} by retention_hours")
    if growth:
        when.append(f"once the log has grown by {_format_size(growth)} by retention_bytes")
    due = " or ".join(when) or "when they are too old by retention_hours"
    text = f"retention takes {_format_size(size)} next, {due}"
    return Problem(group.name, f"{text}; a pin or an open transaction keeps them until then" if is_held else text)


def _format_size(number: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


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
