"""Leadership of broker groups: who led when and why that changed, handing over, and draining a node.

A drained node leads nothing, so that its stop interrupts no client. The drain says whether the group can do without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from dledger_client import Admin
from dledger_remoting.leaders import LeaderChangeRow

from ..health.groups import GroupView, group_views
from ..health.judge import working_voters
from ..health.reports import Limits
from . import clusters
from .access import Access
from .errors import MissingError, OperationError

WAIT_SECONDS: Final = 15.0
"""Time limit for the new leader. A handover takes up to two election times."""
_LOOK_SECONDS: Final = 0.2
_CLOSE_ENTRIES: Final = 1000
"""Maximum lag, in entries, of a voter that is chosen to lead."""


class Leader(msgspec.Struct, frozen=True):
    """A leader of a broker group since `since_ms` (ms since 1970, by its own clock), or None while nobody led."""

    leader: str | None
    term: int
    since_ms: int
    reason: str


class Led(msgspec.Struct, frozen=True):
    """Result of a handover."""

    broker_group: str
    leader: str


class Drained(msgspec.Struct, frozen=True):
    """Result of a drain: the node leads nothing. `may_stop` says whether its group works without it; `text` says why.

    `leader` is the leader of its group.
    """

    broker_group: str
    node: str
    leader: str
    may_stop: bool
    text: str


async def leaders(admin: Admin, broker_group: str) -> list[Leader]:
    """Return the leaders that the nodes of a broker group remember, the newest first. Nodes forget at their restart."""
    return merge(await admin.leader_changes(broker_group))


def merge(changes: Mapping[str, Sequence[LeaderChangeRow]]) -> list[Leader]:
    """Return one line for each leader and term out of what each node has seen, the newest first.

    A leader knows best why it was elected, and the leader before it why it stopped.
    """
    ends = [change for node, rows in changes.items() for change in _ends_of(node, rows)]
    found: dict[tuple[int, str], Leader] = {}
    for node, rows in changes.items():
        for row in rows:
            if row.leader is None:
                continue
            known = found.get((row.term, row.leader))
            if known is None or row.leader == node:
                found[row.term, row.leader] = Leader(row.leader, row.term, row.at_ms, row.reason)
    story = sorted(found.values(), key=lambda line: (line.term, line.since_ms))
    told = [_with_end(line, story[index - 1] if index else None, ends) for index, line in enumerate(story)]
    newest = max((rows[-1] for rows in changes.values() if rows), key=lambda row: (row.term, row.at_ms), default=None)
    if (
        newest is not None
        and newest.leader is None
        and all(rows[-1].leader is None for rows in changes.values() if rows)
    ):
        told.append(Leader(None, newest.term, newest.at_ms, newest.reason))
    return told[::-1]


def _ends_of(node: str, rows: Sequence[LeaderChangeRow]) -> Iterator[tuple[int, str, str]]:
    """Yield term, node and reason of each end of this node's leadership."""
    for before, after in pairwise(rows):
        if before.leader == node and after.leader != node:
            yield before.term, node, after.reason


def _with_end(line: Leader, before: Leader | None, ends: Sequence[tuple[int, str, str]]) -> Leader:
    if before is None:
        return line
    reasons = [reason for term, node, reason in ends if (term, node) == (before.term, before.leader)]
    return msgspec.structs.replace(line, reason="; ".join([line.reason, *reasons]))


async def what_handing_over_does(access: Access, broker_group: str, node_id: str) -> list[str]:
    """Describe a handover. Raises `OperationError` for a node that cannot lead."""
    view = await _view_of(access, broker_group)
    leader = _require_leader(view)
    _require_voter(view, node_id)
    if node_id == leader:
        return [f"nothing: {node_id} leads broker group {broker_group} already"]
    peer = view.peer(node_id)
    behind = f", which is {peer.lag} entries behind and gets them first" if peer is not None and peer.lag else ""
    return [
        f"{node_id}{behind} leads broker group {broker_group} instead of {leader}",
        "clients wait for a moment and then go on there; no acknowledged message is lost",
    ]


async def hand_over(admin: Admin, access: Access, broker_group: str, node_id: str) -> Led:
    """Have a voter lead, and wait until it does. Raises `OperationError` if it does not take over."""
    view = await _view_of(access, broker_group)
    leader = _require_leader(view)
    _require_voter(view, node_id)
    if node_id != leader:
        await admin.hand_over(broker_group, node_id)
        now = await _await_leader(access, broker_group, lambda found: found == node_id)
        if now != node_id:
            raise OperationError(
                f"{node_id} did not take over broker group {broker_group} in time; {now or leader} leads"
            )
    return Led(broker_group, node_id)


async def what_draining_does(access: Access, broker_group: str, node_id: str) -> list[str]:
    """Describe a drain. Raises `OperationError` if no other node can lead."""
    view = await _view_of(access, broker_group)
    leader = _require_leader(view)
    _require_member(view, node_id)
    lines = [_describe_stop(view, node_id)[1]]
    if node_id == leader:
        lines.insert(0, f"{_heir_of(view, node_id)} leads broker group {broker_group} instead of {node_id}")
    else:
        lines.insert(0, f"{node_id} does not lead broker group {broker_group}: {leader} goes on")
    return lines


async def drain(admin: Admin, access: Access, broker_group: str, node_id: str) -> Drained:
    """Move the leadership away from a node, and say whether it may be stopped. Raises `OperationError`."""
    view = await _view_of(access, broker_group)
    leader = _require_leader(view)
    _require_member(view, node_id)
    if node_id == leader:
        heir = _heir_of(view, node_id)
        await admin.hand_over(broker_group, heir)
        found = await _await_leader(access, broker_group, lambda now: now not in (None, node_id))
        if found in (None, node_id):
            raise OperationError(f"{heir} did not take over broker group {broker_group} in time; {node_id} still leads")
        view, leader = await _view_of(access, broker_group), found or ""
    may_stop, text = _describe_stop(view, node_id)
    return Drained(broker_group, node_id, leader, may_stop, text)


def _describe_stop(view: GroupView, node_id: str) -> tuple[bool, str]:
    """Return whether a group works without a node, and the sentence about that."""
    if node_id not in view.voters:
        return True, f"{node_id} may be stopped: it is a learner, which counts for no majority"
    others = [voter for voter in working_voters(view, Limits()) if voter != node_id]
    total, quorum = len(view.voters), len(view.voters) // 2 + 1
    if len(others) >= quorum:
        return True, f"{node_id} may be stopped: {len(others)} of {total} voters go on, and {quorum} are enough"
    return (
        False,
        f"{node_id} must not be stopped: only {len(others)} of {total} voters would work, and {quorum} are needed",
    )


def _heir_of(view: GroupView, node_id: str) -> str:
    """Return the working voter that is the closest to the leader. Raises `OperationError` if there is none."""
    lags = {voter: peer.lag for voter in working_voters(view, Limits()) if (peer := view.peer(voter)) is not None}
    close = [voter for voter, lag in lags.items() if voter != node_id and lag <= _CLOSE_ENTRIES]
    if not close:
        raise OperationError(f"no other voter of broker group {view.name} is caught up: {node_id} has to go on leading")
    return min(close, key=lambda voter: (lags[voter], voter))


async def _await_leader(access: Access, broker_group: str, is_wanted: Callable[[str | None], bool]) -> str | None:
    """Return the leader once it is the wanted one, or the leader at the time limit."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        view = await _view_of(access, broker_group)
        found = None if view.leader is None else view.leader.node_id
        if is_wanted(found) or asyncio.get_running_loop().time() >= deadline:
            return found
        await asyncio.sleep(_LOOK_SECONDS)


async def _view_of(access: Access, broker_group: str) -> GroupView:
    views = {view.name: view for view in group_views(await clusters.look(access))}
    if broker_group not in views:
        raise MissingError(f"no name server and no node knows a broker group {broker_group}")
    return views[broker_group]


def _require_leader(view: GroupView) -> str:
    if view.leader is None:
        raise OperationError(f"nobody leads broker group {view.name}: there is no leadership to move")
    return view.leader.node_id


def _require_member(view: GroupView, node_id: str) -> None:
    members = [*view.voters, *view.learners]
    if node_id not in members:
        raise MissingError(f"{node_id} is no member of broker group {view.name}; its members are {', '.join(members)}")


def _require_voter(view: GroupView, node_id: str) -> None:
    _require_member(view, node_id)
    if node_id not in view.voters:
        raise OperationError(f"{node_id} is a learner of broker group {view.name}: only a voter can lead")
