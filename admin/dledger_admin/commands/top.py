"""`dledger top`: nodes, rates, lag and sync times of a cluster, as they change."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ..errors import WrongUsageError, require
from ..operations.access import Access
from ..operations.watching import Glance, NodeLine, Watch
from ..output import columns, emit, output_option, shown
from .client_calls import require_name_server, run
from .options import FiniteFloat, namesrv_option
from .signing import command_access

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

DEFAULT_SECONDS: Final = 2.0
_HEADER: Final = (
    *("broker group", "node", "role", "term", "lag", "stored/s", "delivered/s", "sync ms", "syncs/s", "disk"),
)
_ROLE_STYLES: Final = {"leader": "bold green", "follower": "green", "learner": "cyan"}
_MAX_LATE: Final = 10
_FRAME_LINES: Final = 9
"""Lines of the live view beside nodes, groups and problems: titles, headers and rules of the tables."""


@click.command()
@namesrv_option
@click.option(
    "--interval",
    type=FiniteFloat(min=0.2, max=3600),
    default=DEFAULT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Print one table and end.")
@output_option
def top(namesrv: str, interval: float, once: bool, output: str) -> None:
    """Show nodes, rates, sync times and the lag of consumer groups, again and again; q or Ctrl-C ends it.

    Servers that do not answer are shown as such. `--once` prints how everything is now. Sync times are then those since
    the start of each node.
    """
    access = command_access(namesrv)
    if once:
        emit(run(lambda: _look_once(access), namesrv), output, render)
        return
    if output == "json":
        raise WrongUsageError("-o json goes with --once: the live view has no end")
    if not sys.stdout.isatty():
        raise WrongUsageError("the live view needs a terminal: give --once for one table")
    require("broker", "rich")
    require_name_server(namesrv)
    try:
        asyncio.run(_show_live(access, interval))
    except KeyboardInterrupt:
        pass


async def _look_once(access: Access) -> Glance:
    async with access.admin() as admin:
        return await Watch(access, admin).look()


async def _show_live(access: Access, interval_s: float) -> None:
    """Show one glance after another until q is typed."""
    from rich.live import Live

    ending = asyncio.Event()
    with _typed_keys(ending), Live(screen=True, auto_refresh=False) as live:
        async with access.admin() as admin:
            watch = Watch(access, admin)
            while not ending.is_set():
                glance = asyncio.ensure_future(watch.look())
                waiting = asyncio.ensure_future(ending.wait())
                await asyncio.wait((glance, waiting), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not glance.done():
                    glance.cancel()
                    await asyncio.gather(glance, return_exceptions=True)
                    return
                live.update(draw(glance.result(), live.console.height), refresh=True)
                try:
                    async with asyncio.timeout(interval_s):
                        await ending.wait()
                except TimeoutError:
                    continue


@contextmanager
def _typed_keys(ending: asyncio.Event) -> Iterator[None]:
    """Set `ending` once q is typed. Typed letters do not appear meanwhile."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        if not data or b"q" in data.lower():
            ending.set()
            loop.remove_reader(descriptor)

    former = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)


def render(glance: Glance) -> str:
    """Return the text of one glance."""
    parts = [_headline(glance), columns(_HEADER, [_cells(node) for node in glance.nodes])]
    if glance.late:
        rows = [(line.group, line.members, line.lag) for line in glance.late[:_MAX_LATE]]
        parts.append(columns(("late group", "members", "lag"), rows))
        if len(glance.late) > _MAX_LATE:
            parts.append(f"and {len(glance.late) - _MAX_LATE} more late groups")
    parts += [f"{problem.subject}: {problem.text}" for problem in glance.problems]
    return "\n".join([*parts, *([glance.unseen] if glance.unseen else [])])


def draw(glance: Glance, height: int) -> Group:
    """Return one glance for a terminal with this number of lines."""
    from rich.console import Group
    from rich.text import Text

    room = max(3, height - _FRAME_LINES)
    nodes = glance.nodes[: max(1, room - min(len(glance.late), _MAX_LATE) - min(len(glance.problems), 3))]
    room -= len(nodes)
    late = glance.late[: max(0, min(_MAX_LATE, room))]
    problems = glance.problems[: max(1, room - len(late))]
    healthy = not glance.problems
    parts: list[Text | Table] = [
        Text(time.strftime("%H:%M:%S   q ends"), style="dim"),
        Text(shown(glance.sentence), style="green" if healthy else "bold red"),
        Text(f"{glance.stored_per_s:,.0f} stored/s   {glance.delivered_per_s:,.0f} delivered/s"),
        _draw_nodes(nodes),
    ]
    if len(nodes) < len(glance.nodes):
        parts.append(Text(f"and {len(glance.nodes) - len(nodes)} more nodes: the terminal is too low", style="dim"))
    if late:
        parts.append(_draw_late(glance, len(late)))
    parts += [Text(shown(f"{problem.subject}: {problem.text}"), style="yellow") for problem in problems]
    if glance.unseen:
        parts.append(Text(shown(glance.unseen), style="yellow"))
    return Group(*parts)


def _draw_nodes(nodes: list[NodeLine]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in _HEADER:
        table.add_column(name, justify="left" if name in ("broker group", "node", "role") else "right", no_wrap=True)
    for node in nodes:
        cells = ["-" if cell is None else shown(str(cell)) for cell in _cells(node)]
        style = _ROLE_STYLES.get(node.role, "bold red" if node.term is None else "yellow")
        table.add_row(*cells[:2], Text(cells[2], style=style), *cells[3:])
    return table


def _draw_late(glance: Glance, count: int) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("late group")
    table.add_column("members", justify="right")
    table.add_column("lag", justify="right")
    for line in glance.late[:count]:
        table.add_row(shown(line.group), str(line.members), f"{line.lag:,}")
    return table


def _headline(glance: Glance) -> str:
    return (
        f"{glance.sentence}\n{glance.stored_per_s:,.0f} messages stored and {glance.delivered_per_s:,.0f} delivered "
        "a second"
    )


def _cells(node: NodeLine) -> tuple[object, ...]:
    return (
        node.broker_group,
        node.node or node.address,
        node.role,
        node.term,
        node.lag,
        _rounded(node.stored_per_s, 0),
        _rounded(node.delivered_per_s, 0),
        _rounded(node.sync_ms, 2),
        _rounded(node.syncs_per_s, 0),
        None if node.disk_used is None else f"{node.disk_used:.0%}",
    )


def _rounded(number: float | None, digits: int) -> str | None:
    return None if number is None else f"{number:,.{digits}f}"
