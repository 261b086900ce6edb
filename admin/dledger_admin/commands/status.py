"""`dledger status`: one line per process of a local cluster."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ..cluster.layout import ClusterLayout
from ..cluster.lifecycle import services
from ..cluster.manifest import require_manifest
from ..cluster.ports import is_free
from ..cluster.probes import NodeStatus, answers_clients, disk_warnings, fetch_all, group_commits, refusals
from ..cluster.processes import NAMESRV, PROXY
from ..errors import UNHEALTHY
from ..output import columns, emit, output_option
from .options import data_option


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process: `pid` is None when it does not run, `status` of a node when it does not answer over HTTP."""

    name: str
    pid: int | None
    client_port: int
    answers: bool
    lag: int | None = None
    status: NodeStatus | None = None


class OtherMember(msgspec.Struct, frozen=True):
    """A member of a broker group that `up` has not founded and does not start; `standing` is voter or learner."""

    name: str
    group: str
    standing: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """Result of `status`; `leaderless` are the broker groups that no node leads and accepts writes for."""

    data: str
    processes: list[ProcessStatus]
    others: list[OtherMember] = []
    leaderless: list[str] = []

    @property
    def exit_code(self) -> int:
        """0 only while every process answers and every group is led."""
        return UNHEALTHY if self.leaderless or not all(process.answers for process in self.processes) else 0


@click.command()
@data_option
@output_option
@click.pass_context
def status(ctx: click.Context, data: Path, output: str) -> None:
    """Show every process of the cluster: pid, role, term, commit index, lag in entries.

    Lines below the table name nodes that take no messages, with the reason and a remedy, and disks above the watermark
    `disk_max_used_ratio`. The exit code is 3 if a process does not answer, or a broker group has no leader that accepts
    writes.
    """
    result = cluster_status(require_manifest(data).layout(data))
    emit(result, output, render)
    ctx.exit(result.exit_code)


def cluster_status(layout: ClusterLayout) -> ClusterStatus:
    """Ask every process that runs how it is; on the ports of one that does not, another cluster may answer."""
    pids = {name: service.pid() for name, service in services(layout).items()}
    places = layout.places()
    statuses = {place.node_id: None for place in places} | fetch_all(place for place in places if pids[place.node_id])
    commits = group_commits(statuses)
    name_server_pid = pids[NAMESRV]
    answers = name_server_pid is not None and answers_clients(layout.namesrv)
    processes = [ProcessStatus(name=NAMESRV, pid=name_server_pid, client_port=layout.namesrv_port, answers=answers)]
    for place in places:
        answer = statuses[place.node_id]
        processes.append(
            ProcessStatus(
                name=place.node_id,
                pid=pids[place.node_id],
                client_port=place.client_port,
                answers=answer is not None,
                lag=None if answer is None else max(0, commits[place.group] - answer.applied_index),
                status=answer,
            )
        )
    if layout.proxy is not None:
        pid = pids[PROXY]
        is_open = pid is not None and not is_free(layout.proxy.port)
        processes.append(ProcessStatus(name=PROXY, pid=pid, client_port=layout.proxy.port, answers=is_open))
    led_groups = {answer.group for answer in statuses.values() if answer is not None and answer.leads}
    leaderless = sorted({place.group for place in places} - led_groups)
    return ClusterStatus(str(layout.data_dir), processes, other_members(layout, statuses), leaderless)


def other_members(layout: ClusterLayout, statuses: dict[str, NodeStatus | None]) -> list[OtherMember]:
    """Return the members that were added by hand, as the node of each group knows them that has committed most."""
    newest: dict[str, NodeStatus] = {}
    for answer in statuses.values():
        if answer is not None and (
            answer.group not in newest or newest[answer.group].commit_index < answer.commit_index
        ):
            newest[answer.group] = answer
    founded = {place.node_id for place in layout.places()}
    return [
        OtherMember(name, answer.group, standing)
        for answer in newest.values()
        for standing, names in (("voter", answer.voters), ("learner", answer.learners))
        for name in names
        if name not in founded
    ]


def render(result: ClusterStatus) -> str:
    """Return the table for people."""
    rows = []
    for process in result.processes:
        answer = process.status
        if not process.answers:
            role = "no answer" if process.pid else "stopped"
        else:
            role = "serving" if answer is None else answer.standing
        rows.append(
            (
                process.name,
                process.pid,
                process.client_port,
                role,
                answer.term if answer else None,
                answer.commit_index if answer else None,
                process.lag,
            )
        )
    table = columns(("process", "pid", "port", "role", "term", "commit", "lag"), rows)
    others = [
        f"{member.name} is a {member.standing} of {member.group} that `up` does not start" for member in result.others
    ]
    leaderless = [f"{group} has no leader that accepts writes" for group in result.leaderless]
    statuses = {process.name: process.status for process in result.processes}
    warnings = [f"warning: {warning}" for warning in disk_warnings(statuses)]
    return "\n".join((table, *others, *leaderless, *refusals(statuses), *warnings))
