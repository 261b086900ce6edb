"""`dledger status`: one line per process of a local cluster."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ..cluster.layout import ClusterLayout
from ..cluster.lifecycle import services
from ..cluster.manifest import require_manifest
from ..cluster.probes import NodeStatus, fetch_all, group_commits
from ..cluster.processes import NAMESRV
from ..output import columns, emit, output_option
from .options import data_option


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process: `pid` is None when it does not run, `status` when it does not answer over HTTP."""

    name: str
    pid: int | None
    client_port: int
    lag: int | None = None
    status: NodeStatus | None = None


class ClusterStatus(msgspec.Struct, frozen=True):
    """Result of `status`."""

    data: str
    processes: list[ProcessStatus]


@click.command()
@data_option
@output_option
def status(data: Path, output: str) -> None:
    """Show every process of the cluster: pid, role, term, commit index, lag in entries."""
    layout = require_manifest(data).layout(data)
    emit(cluster_status(layout), output, render)


def cluster_status(layout: ClusterLayout) -> ClusterStatus:
    """Ask every process how it is."""
    known = services(layout)
    places = layout.places()
    statuses = fetch_all(places)
    commits = group_commits(statuses)
    processes = [ProcessStatus(name=NAMESRV, pid=known[NAMESRV].pid(), client_port=layout.namesrv_port)]
    for place in places:
        answer = statuses[place.node_id]
        processes.append(
            ProcessStatus(
                name=place.node_id,
                pid=known[place.node_id].pid(),
                client_port=place.client_port,
                lag=None if answer is None else max(0, commits[place.group] - answer.applied_index),
                status=answer,
            )
        )
    return ClusterStatus(str(layout.data_dir), processes)


def render(result: ClusterStatus) -> str:
    """Return the table for people."""
    rows = []
    for process in result.processes:
        answer = process.status
        if process.name == NAMESRV:
            role = "serving" if process.pid else "stopped"
        elif answer is None:
            role = "no answer" if process.pid else "stopped"
        else:
            role = answer.standing
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
    return columns(("process", "pid", "port", "role", "term", "commit", "lag"), rows)
