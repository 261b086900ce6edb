"""`dledger up` and `dledger down`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from dledger.types import ENGINES, NATIVE_ENGINE
from dledger_admin.errors import AdminError, require

from ..cluster.console import CONSOLE, DEFAULT_CONSOLE_PORT, console_service, start_console, stop_console
from ..cluster.layout import (
    DEFAULT_BASE_PORT,
    DEFAULT_GROUPS,
    DEFAULT_NAMESRV_PORT,
    DEFAULT_NODES,
    HOST,
    ClusterLayout,
)
from ..cluster.lifecycle import ClusterSetup, RunningCluster, UpOptions, services, up_lock
from ..cluster.manifest import require_manifest
from ..cluster.probes import disk_warnings, fetch_all, refusals
from ..cluster.processes import KILL_AFTER_S, stop_at_once
from ..cluster.proxy_account import make_proxy_account
from ..cluster.securing import Asked, how_to_connect
from ..output import emit, output_option, say
from ..signals import ending_signals, noted_signals
from .options import AbsolutePath, data_option, start_patience_s, start_timeout_option


class Started(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of `up --detach`; leaders are node ids by group. `console`, `proxy` and `proxy_http` only if started."""

    data: str
    namesrv: str
    leaders: dict[str, str]
    console: str | None = None
    proxy: str | None = None
    proxy_http: str | None = None


class Stopped(msgspec.Struct, frozen=True):
    """Result of `down`: who was stopped, and who of them did not listen and was killed."""

    stopped: list[str]
    killed: list[str]


@click.command()
@data_option
@click.option("--groups", type=int, help=f"Broker groups.  [default: {DEFAULT_GROUPS}, later as before]")
@click.option("--nodes", type=int, help=f"Nodes per group, odd.  [default: {DEFAULT_NODES}, later as before]")
@click.option("--namesrv-port", type=int, help=f"[default: {DEFAULT_NAMESRV_PORT}, later as before]")
@click.option(
    "--base-port",
    type=int,
    help=f"Client port of the first node; node k of group g has this + 100 g + 10 k, its peer port is one higher, its "
    f"HTTP port two.  [default: {DEFAULT_BASE_PORT}, later as before]",
)
@click.option(
    "--proxy-port",
    type=int,
    help="Port of a proxy for RocketMQ 5's gRPC clients; 0: no proxy.  [default: no proxy, later as before]",
)
@click.option(
    "--proxy-http-port",
    type=int,
    help="Port of that proxy for clients that speak HTTP; 0: none.  [default: none, later as before]",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help=f"Engine of every node.  [default: {NATIVE_ENGINE}, later as before]",
)
@click.option(
    "--config",
    type=AbsolutePath(),
    metavar="FILE",
    help="TOML file with keys that override the configuration of every node.",
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    help="When a node syncs its log: before it acknowledges, or later. async may lose messages with the power of a "
    "majority.  [default: sync, later as before]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Key of every node's configuration, or namesrv.KEY, proxy.KEY, nodes.NODE-ID.KEY; repeatable. It stays "
    "for later starts; an empty VALUE takes it away.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Turn on TLS and access control from now on: make certificates, keys and an administrator's account.",
)
@click.option(
    "--renew-certificates",
    is_flag=True,
    help="Make a new authority and new certificates for a secured cluster; clients need the new ca.pem.",
)
@click.option(
    "--new-key-file",
    is_flag=True,
    help="Make a new key file for a secured cluster that has lost its key file; accounts then need new secrets.",
)
@click.option(
    "--console-port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_CONSOLE_PORT,
    envvar="DLEDGER_CONSOLE_PORT",
    show_default=True,
    show_envvar=True,
    help="Port of the console; 0 for none. A taken port is told, and keeps nothing from starting.",
)
@click.option("--detach", is_flag=True, help="Return once every group has a leader that accepts writes.")
@start_timeout_option
@output_option
def up(
    data: Path,
    groups: int | None,
    nodes: int | None,
    namesrv_port: int | None,
    base_port: int | None,
    proxy_port: int | None,
    proxy_http_port: int | None,
    engine: str | None,
    config: Path | None,
    flush: str | None,
    settings: tuple[str, ...],
    secure: bool,
    renew_certificates: bool,
    new_key_file: bool,
    console_port: int,
    detach: bool,
    timeout: float | None,
    output: str,
) -> None:
    """Start a name server, GROUPS x NODES brokers and the console on 127.0.0.1.

    The first `up` on a fresh directory bootstraps the cluster; a later one starts what is there. In the foreground it
    shows one line per process and stops everything on Ctrl-C.
    """
    patience_s = start_patience_s(timeout, detach=detach)
    if output == "json" and not detach:
        raise click.UsageError("-o json goes with --detach: in the foreground there is no result")
    require("broker", "aiohttp", "jinja2", "prometheus_client", "rich")
    security_options = Asked(secure, renew_certificates, new_key_file)
    keys = (*((f"flush={flush}",) if flush else ()), *settings)
    options = UpOptions(
        data,
        groups,
        nodes,
        namesrv_port,
        base_port,
        config,
        engine,
        security_options,
        proxy_port,
        proxy_http_port,
        keys,
    )
    ClusterSetup.prepare(options)  # errors are said before a directory is made
    with up_lock(data):
        setup = ClusterSetup.prepare(options)  # another `up` may have come and gone
        for meaning in setup.meanings:
            say(f"warning: {meaning}")
        if not detach:
            _run_in_foreground(setup, console_port)
            return
        with noted_signals() as check:
            cluster = setup.start()
            leaders = _await_leaders(cluster, patience_s, check, secured=setup.manifest.secured)
            console = start_console(cluster.layout, console_port, say, secured=setup.manifest.secured)
    statuses = fetch_all(cluster.layout.places())
    for warning in (*refusals(statuses), *disk_warnings(statuses)):
        say(f"warning: {warning}")
    for name, code in cluster.exited().items():
        words = services(cluster.layout)[name].last_words()
        say(f"warning: {name} ended with exit code {code}: {words}")
    layout = cluster.layout
    proxy = f"{HOST}:{layout.proxy_port}" if layout.proxy_port else None
    proxy_http = f"{HOST}:{layout.proxy_http_port}" if layout.proxy_http_port else None
    emit(Started(str(data), layout.namesrv_address, leaders, console, proxy, proxy_http), output, _render_started)
    if output != "json" and setup.manifest.secured:
        for line in how_to_connect(cluster.layout):
            click.echo(line)


@click.command()
@data_option
@output_option
def down(data: Path, output: str) -> None:
    """Stop every process of the cluster at once, without draining."""
    layout = require_manifest(data).layout(data)
    processes = {**services(layout), CONSOLE: console_service(layout)}
    running = sorted(name for name, service in processes.items() if service.pid() is not None)
    killed = stop_at_once(processes, say=say)
    emit(Stopped(running, killed), output, lambda result: _render_stopped(layout, result))


def _await_leaders(
    cluster: RunningCluster, timeout_s: float, check: Callable[[], None], *, secured: bool
) -> dict[str, str]:
    try:
        leaders = cluster.await_leaders(timeout_s, check, say)
        if secured and cluster.layout.proxy is not None:
            make_proxy_account(cluster.layout)
        cluster.await_proxy(timeout_s, check)
        return {group: status.node_id for group, status in leaders.items()}
    except BaseException:
        cluster.stop()
        raise


def _run_in_foreground(setup: ClusterSetup, console_port: int) -> None:
    """Start and show the cluster; the signals are taken over before the first process exists."""
    from rich.console import Console

    from ..cluster.live import watch

    stop_requested = False

    def request_stop(number: int, frame: object) -> None:
        nonlocal stop_requested
        del number, frame
        stop_requested = True

    for number in ending_signals():
        signal.signal(number, request_stop)
    cluster = setup.start()
    if setup.manifest.secured and cluster.layout.proxy is not None:
        arguments = (cluster, lambda: stop_requested)
        threading.Thread(target=_make_account_once_led, args=arguments, daemon=True).start()
    try:
        address = start_console(cluster.layout, console_port, say, secured=setup.manifest.secured)
        if address is not None:
            click.echo(f"console {address}")
        for line in how_to_connect(cluster.layout) if setup.manifest.secured else ():
            click.echo(line)
        watch(cluster, Console(), lambda: stop_requested)
    finally:
        stop_console(cluster.layout)
        cluster.stop(say)


def _make_account_once_led(cluster: RunningCluster, is_stopping: Callable[[], bool]) -> None:
    """Make the proxy's account while the cluster is shown already. The proxy itself waits for nothing."""
    try:
        cluster.await_leaders()
        make_proxy_account(cluster.layout)
    except AdminError as error:
        if not is_stopping():
            say(f"warning: {error}")


def _render_started(result: Started) -> str:
    leaders = ", ".join(f"{group} led by {node_id}" for group, node_id in result.leaders.items())
    console = f"console {result.console}\n" if result.console else ""
    proxy = "" if result.proxy is None else f"; proxy {result.proxy}"
    proxy += "" if result.proxy_http is None else f", HTTP at {result.proxy_http}"
    return f"{console}name server {result.namesrv}; {leaders}{proxy}\nstop with: dledger down --data {result.data}"


def _render_stopped(layout: ClusterLayout, result: Stopped) -> str:
    if not result.stopped:
        return f"nothing of {layout.data_dir} was running"
    text = f"stopped {', '.join(result.stopped)}"
    killed = f"; killed, because a stop got no further for {KILL_AFTER_S:.0f} s: {', '.join(result.killed)}"
    return text + killed if result.killed else text
