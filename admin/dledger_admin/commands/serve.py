"""`dledger broker`, `dledger namesrv` and `dledger proxy`: one process in the foreground, for real deployments."""

from __future__ import annotations

import runpy
import sys

import click

from dledger_admin.errors import require


@click.command()
@click.option(
    "--config",
    type=click.Path(),
    required=True,
    metavar="FILE",
    help="TOML, or RocketMQ's broker.conf; see the configuration reference.",
)
@click.option(
    "--bootstrap",
    is_flag=False,
    flag_value="ask",
    type=click.Choice(("ask", "alone")),
    help="Found a group of one voter in an empty data directory; listed peers join it. All peers are asked first: if"
    " one is in a group, this node joins that. 'alone' founds without asking.",
)
def broker(config: str, bootstrap: str | None) -> None:
    """Run one broker node. SIGTERM drains it, a second one stops it at once."""
    require("broker", "aiohttp", "prometheus_client")
    _run("dledger_broker", ["--config", config, *([f"--bootstrap={bootstrap}"] if bootstrap else [])])


@click.command()
@click.option(
    "--config",
    type=click.Path(),
    required=True,
    metavar="FILE",
    help="TOML, or RocketMQ's namesrv.conf; see the configuration reference.",
)
def namesrv(config: str) -> None:
    """Run one name server."""
    _run("dledger_namesrv", ["--config", config])


@click.command()
@click.option(
    "--config", type=click.Path(), metavar="FILE", help="TOML; see the configuration reference.  [default: no file]"
)
@click.option(
    "--namesrv", metavar="ADDRESSES", help="Name servers, instead of those in FILE.  [default: 127.0.0.1:9876]"
)
@click.option("--grpc-port", type=int, help="Port for gRPC, instead of that in FILE.  [default: 8081]")
@click.option("--http-port", type=int, help="Port for HTTP and JSON, instead of that in FILE.  [default: none]")
def proxy(config: str | None, namesrv: str | None, grpc_port: int | None, http_port: int | None) -> None:
    """Run one proxy for RocketMQ 5's gRPC clients, and for clients that speak HTTP.

    SIGTERM lets it answer the requests under way first.
    """
    require("proxy", "aiohttp", "google.protobuf", "grpclib", "prometheus_client", "uvloop")
    options = (
        ("--config", config),
        ("--namesrv", namesrv),
        ("--grpc-port", grpc_port),
        ("--http-port", http_port),
    )
    _run("dledger_proxy", [word for name, value in options if value is not None for word in (name, str(value))])


def _run(module: str, arguments: list[str]) -> None:
    """Run `python -m module` in this process."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
