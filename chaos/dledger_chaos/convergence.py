"""Test whether a cluster has converged: every node runs, is a voter, and has applied the leader's committed entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from .errors import TargetError
from .target import NodeView, Target

CONVERGE_S: Final = 90.0
_POLL_S: Final = 0.1


async def leader_of(target: Target, members: Iterable[str]) -> NodeView | None:
    """Return the leader of the highest term that serves clients, None if no node reports that."""
    views = await asyncio.gather(*map(target.status, members))
    leaders = [view for view in views if view is not None and view.leads]
    return max(leaders, key=lambda view: view.term, default=None)


async def wait_caught_up(target: Target, node_id: str, timeout_s: float = CONVERGE_S) -> None:
    """Wait until a node is a voter and has applied all entries committed at the time of the call.

    Raises `TargetError`.
    """
    group = next(node.group for node in target.nodes if node.node_id == node_id)
    await _wait_until_applied(target, members_of(target)[group], (node_id,), timeout_s)


async def wait_converged(target: Target, timeout_s: float = CONVERGE_S) -> None:
    """Wait until `wait_caught_up` would return for all nodes of all groups. Raises `TargetError` with the reason."""
    for members in members_of(target).values():
        await _wait_until_applied(target, members, members, timeout_s)


def members_of(target: Target) -> dict[str, tuple[str, ...]]:
    """Return the node ids of each group."""
    groups: dict[str, tuple[str, ...]] = {}
    for node in target.nodes:
        groups[node.group] = (*groups.get(node.group, ()), node.node_id)
    return groups


async def _wait_until_applied(
    target: Target, members: tuple[str, ...], wanted: Iterable[str], timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    committed = None
    while True:
        leader = await leader_of(target, members)
        if leader is not None:
            # Wait for the first commit index only. Under load the commit index always runs ahead of some node.
            committed = leader.commit_index if committed is None else committed
            lacking = await _find_lack(target, leader, committed, wanted)
        else:
            lacking = f"no leader among {', '.join(members)}"
        if not lacking:
            return
        if time.monotonic() >= deadline:
            raise TargetError(f"{lacking} after {timeout_s:g} s")
        await asyncio.sleep(_POLL_S)


async def _find_lack(target: Target, leader: NodeView, committed: int, wanted: Iterable[str]) -> str:
    for node_id in wanted:
        view = await target.status(node_id)
        if view is None:
            return f"{node_id} does not answer"
        if leader.voters and node_id not in leader.voters:
            return f"{node_id} is no voter"
        if view.applied_index < committed:
            return f"{node_id} has applied index {view.applied_index} of {committed}"
    return ""
