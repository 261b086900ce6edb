"""What `up` shows in the foreground: one line per node, four times a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .lifecycle import RunningCluster
from .probes import NodeStatus, fetch_all, group_commits

_REFRESH_S = 0.25
_ROLE_STYLES = {"leader": "bold green", "follower": "green", "learner": "cyan"}


def watch(cluster: RunningCluster, console: Console, stop_requested: Callable[[], bool]) -> None:
    """Show the cluster until `stop_requested()` or until no process is left."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while not stop_requested() and len(cluster.exited()) < len(cluster.processes):
            live.update(status_table(cluster, fetch_all(cluster.layout.places())), refresh=True)
            time.sleep(_REFRESH_S)


def status_table(cluster: RunningCluster, statuses: dict[str, NodeStatus | None]) -> Table:
    """Return one line per node: role, term, commit index, and how many entries it is behind its group's commit."""
    table = Table(title=f"name server {cluster.layout.namesrv_address}   data {cluster.layout.data_dir}   Ctrl-C stops")
    for column in ("node", "client port", "role", "term", "commit", "lag"):
        table.add_column(column, justify="left" if column in {"node", "role"} else "right")
    exited = cluster.exited()
    commits = group_commits(statuses)
    for place in cluster.layout.places():
        status = statuses.get(place.node_id)
        if status is None:
            state = f"ended, exit code {exited[place.node_id]}" if place.node_id in exited else "no answer"
            table.add_row(place.node_id, str(place.client_port), f"[red]{state}[/]", "-", "-", "-")
            continue
        role = f"[{_ROLE_STYLES.get(status.standing, 'yellow')}]{status.standing}[/]"
        lag = max(0, commits[place.group] - status.applied_index)
        table.add_row(place.node_id, str(place.client_port), role, str(status.term), str(status.commit_index), str(lag))
    return table
