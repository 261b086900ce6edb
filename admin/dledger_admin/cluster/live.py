"""Display of `up` in the foreground: a table of the processes on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .lifecycle import RunningCluster, services
from .probes import NodeStatus, fetch_all, group_commits, refusals
from .processes import NAMESRV

_REFRESH_S = 0.25
_ROLE_STYLES = {"leader": "bold green", "follower": "green", "learner": "cyan"}


def watch(cluster: RunningCluster, console: Console, stop_requested: Callable[[], bool]) -> None:
    """Show the cluster until `stop_requested()` or until no process is left."""
    layout = cluster.layout
    console.print(f"name server {layout.namesrv_address}   data {layout.data_dir}   Ctrl-C stops", highlight=False)
    show = show_changes(cluster, console)
    with Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else nullcontext() as live:
        while not stop_requested() and cluster.runs():
            statuses = fetch_all(layout.places())
            if live is None:
                show(statuses)
            else:
                live.update(status_table(cluster, statuses), refresh=True)
            time.sleep(_REFRESH_S)


def show_changes(cluster: RunningCluster, console: Console) -> Callable[[dict[str, NodeStatus | None]], None]:
    """Return what prints a line for each process of another role, term or state than when it was last called."""
    shown: dict[str, str] = {}

    def show(statuses: dict[str, NodeStatus | None]) -> None:
        exited = cluster.exited()
        states = {NAMESRV: _name_server(cluster, exited)}
        for place in cluster.layout.places():
            status = statuses.get(place.node_id)
            if status is None:
                states[place.node_id] = _silent(place.node_id, exited)
            else:
                refusal = f": {status.refusal}" if status.refusal else ""
                states[place.node_id] = f"{status.standing} in term {status.term}{refusal}"
        for name, state in states.items():
            if shown.get(name) != state:
                shown[name] = state
                console.print(f"{name} {state}", highlight=False)

    return show


def _name_server(cluster: RunningCluster, exited: Mapping[str, int]) -> str:
    runs = services(cluster.layout)[NAMESRV].pid() is not None
    return "serving" if runs else _silent(NAMESRV, exited)


def _silent(node_id: str, exited: Mapping[str, int]) -> str:
    return f"ended, exit code {exited[node_id]}" if node_id in exited else "no answer"


def status_table(cluster: RunningCluster, statuses: dict[str, NodeStatus | None]) -> Table:
    """Return one line per process: role, and of nodes term, commit index, and how many entries they are behind it."""
    table = Table()
    for column in ("process", "port", "role", "term", "commit", "lag"):
        table.add_column(column, justify="left" if column in {"process", "role"} else "right")
    table.caption = "\n".join(refusals(statuses)) or None
    exited = cluster.exited()
    commits = group_commits(statuses)
    name_server = _name_server(cluster, exited)
    colour = "green" if name_server == "serving" else "red"
    table.add_row(NAMESRV, str(cluster.layout.namesrv_port), f"[{colour}]{name_server}[/]", "-", "-", "-")
    for place in cluster.layout.places():
        status = statuses.get(place.node_id)
        if status is None:
            state = _silent(place.node_id, exited)
            table.add_row(place.node_id, str(place.client_port), f"[red]{state}[/]", "-", "-", "-")
            continue
        role = f"[{_ROLE_STYLES.get(status.standing, 'yellow')}]{status.standing}[/]"
        lag = max(0, commits[place.group] - status.applied_index)
        table.add_row(place.node_id, str(place.client_port), role, str(status.term), str(status.commit_index), str(lag))
    return table
