"""Health of one node: its row in the table, and its problems."""

from __future__ import annotations

from collections.abc import Iterator

from dledger_remoting.route import BrokerData

from .groups import GroupView
from .reports import Limits, NodeAnswer, NodeHealth, NodeReport, Problem, Survey


def node_health(group: GroupView, node_id: str) -> NodeHealth:
    """Return the row of a node that is known by its id."""
    answer, report, peer = group.answers.get(node_id), group.report(node_id), group.peer(node_id)
    lags = [] if peer is None else [peer.lag]
    if report is not None:
        lags.append(max(0, report.commit_index - report.applied_index))
    return NodeHealth(
        broker_group=group.name,
        node=node_id,
        address=group.addresses.get(node_id),
        role="no answer" if report is None else _describe_role(group, report),
        term=report.term if report else None,
        commit=report.commit_index if report else None,
        lag=max(lags, default=None),
        disk_used=report.disk_used_permille / 1000 if report else None,
        version=answer.version if answer else None,
        uptime_s=answer.uptime_s if answer else None,
        clock_ahead_ms=0 if group.leader is report and report else peer.clock_ahead_ms if peer else None,
    )


def stranger_health(group: GroupView, address: str, survey: Survey) -> tuple[NodeHealth, Problem]:
    """Return the row and the problem of a registered address whose node did not tell its id."""
    answer = survey.nodes[address]
    if isinstance(answer, NodeAnswer):
        text = "tells nothing of a replicated log: it is no node of ours, or of a version that does not tell"
        row = NodeHealth(broker_group=group.name, node=None, address=address, role="unknown", version=answer.version)
    else:
        text = answer
        row = NodeHealth(broker_group=group.name, node=None, address=address, role="no answer")
    return row, Problem(address, text)


def node_problems(group: GroupView, row: NodeHealth, survey: Survey, limits: Limits) -> Iterator[Problem]:
    """Yield everything that is wrong with a node that is known by its id."""
    node_id = row.node or ""
    answer, report = group.answers.get(node_id), group.report(node_id)
    texts = _explain_absence(group, row, survey) if report is None else _state_problems(group, report)
    yield from (Problem(node_id, text) for text in texts)
    if answer is None or report is None:
        return
    yield from (Problem(node_id, text) for text in _limit_problems(group, row, limits))
    if answer.is_draining:
        yield Problem(node_id, "drains: it has left the name servers and stops soon")
        return
    for name_server in survey.name_servers:
        if name_server.groups is not None and not _is_listed(name_server.groups.get(group.name), row.address):
            advice = "look at `namesrv` in its configuration, and whether it reaches that name server"
            yield Problem(
                node_id, f"is not registered with {name_server.address}, so that clients do not find it there: {advice}"
            )


def _explain_absence(group: GroupView, row: NodeHealth, survey: Survey) -> Iterator[str]:
    """Yield why a node that is known by its id has given no report."""
    peer = group.peer(row.node or "")
    last_contact = "" if peer is None else f"; its leader heard from it {peer.contact_ms / 1000:.0f} s ago"
    answer = survey.nodes.get(row.address) if row.address else None
    if isinstance(answer, str):
        yield f"{answer}{last_contact}"
    elif isinstance(answer, NodeAnswer):
        yield f"{row.address} answers and tells nothing of a replicated log: it is of a version that does not tell"
    else:
        yield (
            f"is a member, and no name server lists it{last_contact}: start it, or `dledger node remove {row.node}` "
            "if it is gone for good"
        )


def _state_problems(group: GroupView, report: NodeReport) -> Iterator[str]:
    """Yield what is wrong with a node by its own report and its leader's."""
    if report.failure:
        yield f"has failed and serves nothing: {report.failure}"
    if report.refusal:
        yield f"takes no messages: {report.refusal}"
    if report.corrupt_bytes:
        yield f"{report.corrupt_bytes} bytes of its log are corrupt, and no other node has healed them yet"
    if report.rotten_snapshots:
        yield f"{report.rotten_snapshots} of its snapshots are corrupt, and no other node has healed them yet"
    if group.leader is None:
        return
    if report.role == "leader" and report is not group.leader:
        newer = f"{group.leader.node_id} leads in term {group.leader.term}"
        yield f"still takes itself for the leader, in term {report.term}, and {newer}"
    if report.node_id in group.learners:
        yield "is a learner: it counts for no majority until it has caught up and is promoted"
    elif report.node_id not in group.voters:
        leader = group.leader.node_id
        yield f"is no member of its group: {leader} takes it in once it is among the peers in {leader}'s configuration"


def _limit_problems(group: GroupView, row: NodeHealth, limits: Limits) -> Iterator[str]:
    """Yield the problems of figures beyond their limits. A disk also counts if it has reached its limit."""
    peer = group.peer(row.node or "")
    if peer is not None and peer.contact_ms > limits.silence_ms:
        silence = f"{peer.contact_ms / 1000:.0f} s"
        yield f"answers here, and its leader has not heard from it for {silence}: look at its peer port"
    if row.lag is not None and row.lag > limits.lag:
        yield f"is {row.lag} entries behind, at most {limits.lag} expected"
    if row.disk_used is not None and row.disk_used >= limits.disk_used:
        state = "full" if row.disk_used >= 1 else f"{row.disk_used:.0%} full, below {limits.disk_used:.0%} expected"
        yield f"its disk is {state}: make room there"
    if row.clock_ahead_ms is not None and abs(row.clock_ahead_ms) > limits.clock_ms:
        direction = "ahead of" if row.clock_ahead_ms > 0 else "behind"
        difference = f"{abs(row.clock_ahead_ms) / 1000:.1f} s {direction} its leader's"
        yield f"its clock is {difference}: synchronise the machines' clocks"


def _is_listed(registered: BrokerData | None, address: str | None) -> bool:
    return registered is not None and address in registered.broker_addrs.values()


def _describe_role(group: GroupView, report: NodeReport) -> str:
    if group.leader is not None and report.node_id not in (*group.voters, *group.learners):
        return "no member"
    return report.standing
