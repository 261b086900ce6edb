"""Kills the leader in mid-flight, sees who follows, and brings the killed node back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from ..cluster.layout import NodePlace
from ..cluster.lifecycle import RunningCluster, leaders_by_group, services
from ..cluster.probes import NodeStatus, fetch_all
from ..errors import AdminError

ELECTION_TIMEOUT_S = 20.0
CATCH_UP_TIMEOUT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class KilledLeader:
    """The killed leader, its term, and the time of the kill in monotonic seconds."""

    node_id: str
    term: int
    at: float


async def kill_leader(cluster: RunningCluster, group: str) -> KilledLeader:
    """Kill the group's leader with SIGKILL."""
    leader = await _await_leader(cluster, group, above_term=-1)
    service = services(cluster.layout)[leader.node_id]
    pid = service.pid()
    if pid is None:
        raise AdminError(f"the leader {leader.node_id} has no process: its log is in {service.directory / 'log'}")
    os.kill(pid, signal.SIGKILL)
    return KilledLeader(leader.node_id, leader.term, time.monotonic())


async def await_new_leader(cluster: RunningCluster, group: str, killed: KilledLeader) -> NodeStatus:
    """Wait until another node of the group leads and accepts writes."""
    return await _await_leader(cluster, group, above_term=killed.term)


def restart(cluster: RunningCluster, node_id: str) -> None:
    """Start a killed node again."""
    cluster.processes[node_id].wait()
    cluster.processes[node_id] = services(cluster.layout)[node_id].spawn()


async def await_equal(cluster: RunningCluster, group: str) -> None:
    """Wait until every node of the group has applied the same, last entry."""
    members = cluster.layout.members(group)
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    while not await asyncio.to_thread(_are_equal, members):
        if time.monotonic() > deadline:
            raise AdminError(f"the nodes of {group} were not equal after {CATCH_UP_TIMEOUT_S:.0f} s")
        await asyncio.sleep(_POLL_S)


async def _await_leader(cluster: RunningCluster, group: str, above_term: int) -> NodeStatus:
    deadline = time.monotonic() + ELECTION_TIMEOUT_S
    while True:
        leaders = leaders_by_group(await asyncio.to_thread(fetch_all, cluster.layout.members(group)))
        if group in leaders and leaders[group].term > above_term:
            return leaders[group]
        if time.monotonic() > deadline:
            raise AdminError(f"{group} had no leader above term {above_term} after {ELECTION_TIMEOUT_S:.0f} s")
        await asyncio.sleep(_POLL_S)


def _are_equal(members: list[NodePlace]) -> bool:
    statuses = list(fetch_all(members).values())
    known = [status for status in statuses if status is not None]
    if len(known) < len(members):
        return False
    ends = {(status.commit_index, status.applied_index, status.last_position) for status in known}
    return len(ends) == 1 and known[0].commit_index == known[0].applied_index
