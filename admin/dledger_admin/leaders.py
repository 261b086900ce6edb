"""Leaders of broker groups: finding them, and asking one to change its group, with proof of the group's secret."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from dledger.net.proof import ProofError, prove
from dledger_client.connection import split_address

from .cluster.layout import ClusterLayout
from .cluster.probes import fetch_all, http_host
from .errors import AdminError
from .health.groups import group_views
from .health.reports import Survey
from .http_calls import ask

ANSWER_SECONDS: Final = 30.0
"""How long a leader may take: a handover takes up to two of its election times."""

_CHALLENGE: Final = "WWW-Authenticate"


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
    """The leaders among the nodes that were found through name servers."""
    found = []
    for group in group_views(survey):
        if group.leader is not None:
            address = group.answers[group.leader.node_id].http
            members = [*group.voters, *group.learners]
            http_address = None if address is None else split_address(address)
            found.append(Leader(group.name, group.leader.node_id, members, http_address))
    return found


def leader_with(leaders: Sequence[Leader], node_id: str, broker_group: str | None) -> Leader:
    """The leader of the group that has the member. Raises `AdminError` that says which members there are."""
    wanted = [one for one in leaders if broker_group in (None, one.broker_group)]
    found = [one for one in wanted if node_id in one.members]
    if len(found) > 1:
        groups = ", ".join(one.broker_group for one in found)
        raise AdminError(f"{node_id} is a member of {groups}: say of which group with --broker-group")
    if not found:
        there = "; ".join(f"{one.broker_group} (led by {one.node}): {', '.join(one.members)}" for one in wanted)
        raise AdminError(
            f"{node_id} is a member of no group that has a leader; members are {there}"
            if there
            else f"no leader of {broker_group or 'any group'} is found: nothing can be changed before there is one"
        )
    return found[0]


def ask_to_lead(leader: Leader, node_id: str, secret: bytes) -> str:
    """Have a member lead instead; returns what the leader says once it does. Raises `AdminError`."""
    return _ask(leader, "PUT", f"/leader/{quote(node_id, safe='')}", secret)


def ask_to_remove(leader: Leader, node_id: str, secret: bytes) -> str:
    """Have a member removed; returns what the leader says once that is proposed. Raises `AdminError`."""
    return _ask(leader, "DELETE", f"/members/{quote(node_id, safe='')}", secret)


def _ask(leader: Leader, method: str, path: str, secret: bytes) -> str:
    if leader.http is None:
        raise AdminError(
            f"{leader.node} leads {leader.broker_group} and has no HTTP port: set http_port in its configuration"
        )
    host, port = leader.http
    try:
        status, text, challenge = _request(host, port, method, path, {})
        if status == http.HTTPStatus.UNAUTHORIZED:
            headers = {"Authorization": prove(secret, method, path, challenge)}
            status, text, _ = _request(host, port, method, path, headers)
    except (OSError, http.client.HTTPException, ProofError) as error:
        raise AdminError(f"{leader.node}, which leads, cannot be asked at {host}:{port}: {error}") from error
    if status != http.HTTPStatus.OK:
        raise AdminError(f"{leader.node}, which leads, refuses: {text}")
    return text


def _request(host: str, port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Return status, text and challenge of the answer."""
    answer = ask(host, port, method, path, headers, ANSWER_SECONDS)
    return answer.status, answer.body.decode(errors="replace"), answer.headers.get(_CHALLENGE, "")
