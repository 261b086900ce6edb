"""`dledger cluster health`: whether a cluster on any number of hosts is well."""

from __future__ import annotations

import time
from typing import Final

import click

from ..errors import UNHEALTHY, AdminError, UnhealthyError, WrongUsageError
from ..health.reports import ClusterHealth, Limits
from ..health.text import render
from ..operations import clusters
from ..output import emit, output_option
from .client_calls import run
from .options import FiniteFloat, namesrv_option
from .signing import command_access

WATCH_SECONDS: Final = 2.0


@click.command()
@namesrv_option
@click.option(
    "--watch",
    type=FiniteFloat(min=0.1),
    is_flag=False,
    flag_value=WATCH_SECONDS,
    metavar="[SECONDS]",
    help=f"Repeat every SECONDS until Ctrl-C.  [default: {WATCH_SECONDS:g}]",
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    default=Limits().lag,
    show_default=True,
    help="Maximum number of entries that a node may be behind its leader.",
)
@click.option(
    "--max-disk",
    type=click.IntRange(1, 100),
    default=round(Limits().disk_used * 100),
    show_default=True,
    help="Use of a disk, in per cent, at which the disk is too full.",
)
@output_option
@click.pass_context
def health(ctx: click.Context, namesrv: str, watch: float | None, max_lag: int, max_disk: int, output: str) -> None:
    """Show every node of every broker group, and what is wrong with the cluster.

    All name servers are asked for the nodes, and every node for its state, on its client port. The exit code is 0 if
    the cluster is healthy, and 3 if it is not or no name server answers. With --watch the last check decides.
    """
    limits = Limits(lag=max_lag, disk_used=max_disk / 100)
    if watch is None:
        result = _check_health(namesrv, limits)
        emit(result, output, render)
        ctx.exit(0 if result.healthy else UNHEALTHY)
    ctx.exit(_watch(namesrv, limits, watch, output))


def _check_health(namesrv: str, limits: Limits) -> ClusterHealth:
    """Ask all name servers and nodes once. Raises `UnhealthyError` if no name server answers."""
    try:
        result = run(lambda: clusters.health(command_access(namesrv), limits), namesrv)
    except WrongUsageError:
        raise
    except AdminError as error:
        raise UnhealthyError(error.message) from error
    if not any(result.name_servers.values()):
        reasons = "; ".join(problem.text for problem in result.problems if problem.subject in result.name_servers)
        raise UnhealthyError(f"no name server of {namesrv} tells which nodes there are: {reasons}")
    return result


def _watch(namesrv: str, limits: Limits, pause_s: float, output: str) -> int:
    """Repeat the check until Ctrl-C; return the exit code of the last one."""
    code = 0
    try:
        while True:
            try:
                result = _check_health(namesrv, limits)
            except AdminError as error:  # the next check may find a name server
                error.show()
                code = error.exit_code
            else:
                if output == "text":
                    click.clear()
                    click.echo(time.strftime("%Y-%m-%dT%H:%M:%S%z"))
                emit(result, output, render)
                code = 0 if result.healthy else UNHEALTHY
            time.sleep(pause_s)
    except KeyboardInterrupt:
        return code
