"""`dledger console`: the console in the foreground."""

from __future__ import annotations

import asyncio
import logging
import signal

import click

from dledger_admin.cluster.console import DEFAULT_CONSOLE_PORT
from dledger_admin.commands.client_calls import require_name_server
from dledger_admin.commands.options import namesrv_option
from dledger_admin.commands.signing import access_without_account
from dledger_admin.errors import AdminError, require
from dledger_admin.operations.access import Access
from dledger_base.errors import ConfigError


@click.command()
@namesrv_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_CONSOLE_PORT,
    show_default=True,
    help="Port; 0 takes a free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Name of a proxy with TLS in front of the console; repeatable. Other names are refused.",
)
def console(namesrv: str, host: str, port: int, names: tuple[str, ...]) -> None:
    """Serve the console: pages that show a cluster and change it, until Ctrl-C.

    Where the cluster has access control, people log in with their accounts, and have their own rights. The console
    itself has none. DLEDGER_TLS_CA and its like count here too, DLEDGER_CREDENTIALS does not.
    """
    require("broker", "aiohttp", "jinja2")
    from .guarding import is_loopback

    access = access_without_account(namesrv)
    require_name_server(namesrv)
    if not is_loopback(host):
        click.echo(
            f"warning: {host} is reached from other machines, and secrets of people travel there without TLS: put a "
            "proxy with TLS in front, and give its name with --name",
            err=True,
        )
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(serve(access, host, port, names))
    except ConfigError as error:
        raise AdminError(str(error)) from error


async def serve(access: Access, host: str, port: int, names: tuple[str, ...] = ()) -> None:
    """Serve until SIGINT or SIGTERM. Say the address first. Raises `ConfigError` if the port is taken."""
    from .cluster import Cluster
    from .server import Console, Place

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with Console(Cluster(access), Place(host, port, names)) as running:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"console on http://{shown}:{running.port}/")
        await stopping.wait()
