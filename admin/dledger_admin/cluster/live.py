"""Display of `up` in the foreground: a table of the processes on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import compress

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .lifecycle import RunningCluster, services
from .probes import NodeStatus, disk_warnings, fetch_all, group_commits, refusals
from .processes import NAMESRV

_REFRESH_S = 0.25
_MIN_WIDE_WIDTH = 60
"""Narrower terminals get the columns of `_NARROW_COLUMNS` alone, without borders: on them no word is cut."""
_COLUMNS = ("process", "port", "role", "term", "commit", "lag")
_NARROW_COLUMNS = ("process", "role", "lag")
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
                live.update(status_table(cluster, statuses, console.width), refresh=True)
            time.sleep(_REFRESH_S)


def show_changes(cluster: RunningCluster, console: Console) -> Callable[[dict[str, NodeStatus | None]], None]:
    """Return a function that prints a line for each process whose role, term or state has changed."""
    printed_states: dict[str, str] = {}
    warned: set[str] = set()

    def show(statuses: dict[str, NodeStatus | None]) -> None:
        exited = cluster.exited()
        states = {NAMESRV: _describe_name_server(cluster, exited)}
        for place in cluster.layout.places():
            status = statuses.get(place.node_id)
            if status is None:
                states[place.node_id] = _describe_silent(place.node_id, exited)
            else:
                refusal = f": {status.refusal}" if status.refusal else ""
                states[place.node_id] = f"{status.standing} in term {status.term}{refusal}"
            warning = next(iter(disk_warnings({place.node_id: status})), None)
            if warning is None:
                warned.discard(place.node_id)
            elif place.node_id not in warned:  # once, although the figures in it change
                warned.add(place.node_id)
                console.print(f"warning: {warning}", highlight=False)
        for name, state in states.items():
            if printed_states.get(name) != state:
                printed_states[name] = state
                console.print(f"{name} {state}", highlight=False)

    return show


def _describe_name_server(cluster: RunningCluster, exited: Mapping[str, int]) -> str:
    runs = services(cluster.layout)[NAMESRV].pid() is not None
    return "serving" if runs else _describe_silent(NAMESRV, exited)


def _describe_silent(node_id: str, exited: Mapping[str, int]) -> str:
    return f"ended, exit code {exited[node_id]}" if node_id in exited else "no answer"


def status_table(
    cluster: RunningCluster, statuses: dict[str, NodeStatus | None], width: int = _MIN_WIDE_WIDTH
) -> Table:
    """Return a table of the processes with their roles. Nodes also have term, commit index, and lag in entries.

    `width` is that of the terminal, in columns.
    """
    is_wide = width >= _MIN_WIDE_WIDTH
    table = Table() if is_wide else Table(box=None, padding=(0, 1, 0, 0))
    shown = [column in _NARROW_COLUMNS or is_wide for column in _COLUMNS]
    for column in compress(_COLUMNS, shown):
        table.add_column(column, justify="left" if column in {"process", "role"} else "right")

    def add_row(*cells: str) -> None:
        table.add_row(*compress(cells, shown))

    table.caption = "\n".join((*refusals(statuses), *disk_warnings(statuses))) or None
    exited = cluster.exited()
    commits = group_commits(statuses)
    name_server = _describe_name_server(cluster, exited)
    colour = "green" if name_server == "serving" else "red"
    add_row(NAMESRV, str(cluster.layout.namesrv_port), f"[{colour}]{name_server}[/]", "-", "-", "-")
    for place in cluster.layout.places():
        status = statuses.get(place.node_id)
        if status is None:
            state = _describe_silent(place.node_id, exited)
            add_row(place.node_id, str(place.client_port), f"[red]{state}[/]", "-", "-", "-")
            continue
        role = f"[{_ROLE_STYLES.get(status.standing, 'yellow')}]{status.standing}[/]"
        lag = max(0, commits[place.group] - status.applied_index)
        add_row(place.node_id, str(place.client_port), role, str(status.term), str(status.commit_index), str(lag))
    return table
