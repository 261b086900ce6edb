"""Leaders of broker groups: finding them, and asking one to change its group, with proof of the group's secret."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from dledger.net.proof import ProofError, prove
from dledger_client.cluster.connection import split_address

from .cluster.layout import ClusterLayout
from .cluster.probes import fetch_all, http_host
from .errors import AdminError
from .health.groups import group_views
from .health.reports import Survey
from .http_calls import ask

ANSWER_SECONDS: Final = 30.0
"""Time limit for a leader's answer. A handover takes up to two of its election times."""

_CHALLENGE_HEADER: Final = "WWW-Authenticate"


class Leader(msgspec.Struct, frozen=True):
    """The node that leads a group: its members by id, and host and port of its HTTP port, None without one."""

    broker_group: str
    node: str
    members: list[str]
    http: tuple[str, int] | None


def leaders_on_this_machine(layout: ClusterLayout) -> list[Leader]:
    """Ask every node of a local cluster over HTTP."""
    statuses = fetch_all(layout.places())
    return [
        Leader(place.group, place.node_id, [*status.voters, *status.learners], (http_host(place), place.http_port))
        for place in layout.places()
        if (status := statuses[place.node_id]) is not None and status.leads
    ]


def leaders_among(survey: Survey) -> list[Leader]:
    """Return the leaders among the nodes that were found through name servers."""
    leaders = []
    for group in group_views(survey):
        if group.leader is not None:
            address = group.answers[group.leader.node_id].http
            members = [*group.voters, *group.learners]
            http_address = None if address is None else split_address(address)
            leaders.append(Leader(group.name, group.leader.node_id, members, http_address))
    return leaders


def leader_with(leaders: Sequence[Leader], node_id: str, broker_group: str | None) -> Leader:
    """Return the leader of the group that has the member. Raises `AdminError` that lists the members."""
    candidates = [leader for leader in leaders if broker_group in (None, leader.broker_group)]
    matching = [leader for leader in candidates if node_id in leader.members]
    if len(matching) > 1:
        groups = ", ".join(leader.broker_group for leader in matching)
        raise AdminError(f"{node_id} is a member of {groups}: say of which group with --broker-group")
    if not matching:
        listed_members = "; ".join(
            f"{leader.broker_group} (led by {leader.node}): {', '.join(leader.members)}" for leader in candidates
        )
        raise AdminError(
            f"{node_id} is a member of no group that has a leader; members are {listed_members}"
            if listed_members
            else f"no leader of {broker_group or 'any group'} is found: nothing can be changed before there is one"
        )
    return matching[0]


def ask_to_lead(leader: Leader, node_id: str, secret: bytes) -> str:
    """Have a member lead instead; returns what the leader says once it does. Raises `AdminError`."""
    return _ask_leader(leader, "PUT", f"/leader/{quote(node_id, safe='')}", secret)


def ask_to_remove(leader: Leader, node_id: str, secret: bytes) -> str:
    """Have a member removed; returns what the leader says once that is proposed. Raises `AdminError`."""
    return _ask_leader(leader, "DELETE", f"/members/{quote(node_id, safe='')}", secret)


def _ask_leader(leader: Leader, method: str, path: str, secret: bytes) -> str:
    if leader.http is None:
        raise AdminError(
            f"{leader.node} leads {leader.broker_group} and has no HTTP port: set http_port in its configuration"
        )
    host, port = leader.http
    try:
        status, text, challenge = _send_request(host, port, method, path, {})
        if status == http.HTTPStatus.UNAUTHORIZED:
            headers = {"Authorization": prove(secret, method, path, challenge)}
            status, text, _ = _send_request(host, port, method, path, headers)
    except (OSError, http.client.HTTPException, ProofError) as error:
        raise AdminError(f"{leader.node}, which leads, cannot be asked at {host}:{port}: {error}") from error
    if status != http.HTTPStatus.OK:
        raise AdminError(f"{leader.node}, which leads, refuses: {text}")
    return text


def _send_request(host: str, port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Return status, text and challenge of the answer."""
    answer = ask(host, port, method, path, headers, ANSWER_SECONDS)
    return answer.status, answer.body.decode(errors="replace"), answer.headers.get(_CHALLENGE_HEADER, "")
