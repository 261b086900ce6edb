"""`dledger node`: start, stop and look at single nodes of a local cluster."""

from __future__ import annotations

import os
import subprocess
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import msgspec

from ..cluster.config_files import stored_overrides, write_broker_config, write_namesrv_config
from ..cluster.layout import ClusterLayout
from ..cluster.lifecycle import services
from ..cluster.manifest import Manifest, require_manifest
from ..cluster.ports import is_free, require_free
from ..cluster.probes import fetch_status
from ..cluster.processes import NAMESRV, Service, stop_at_once, stop_gracefully, stop_started
from ..cluster.starting import Patience
from ..errors import AdminError, LayoutError, StartError, WrongUsageError
from ..help import HelpGroup
from ..output import emit, output_option
from ..signals import noted_signals
from .completing import nodes
from .node_changes import lead, remove
from .node_convert import convert
from .options import data_option
from .start_timeout import start_patience_s, start_timeout_option
from .status import cluster_status
from .status import render as render_status

_POLL_S = 0.03

STOP_PATIENCE_S = 60.0
"""How long `node stop` waits for a node that says nothing new of what it waits for."""


class NodeChange(msgspec.Struct, frozen=True):
    """Result of `node start`, `node stop` and `node recover`."""

    node: str
    pid: int | None
    state: str


@click.group(cls=HelpGroup)
def node() -> None:
    """Start, stop and look at single nodes, have one lead, remove it from its group, or change its engine.

    In a cluster of `up` NODE-ID is broker-<group>-n<number>; `namesrv` can be started, stopped and looked at, too.
    """


node.add_command(convert)
node.add_command(lead)
node.add_command(remove)


@node.command()
@data_option
@click.argument("node_id", metavar="NODE-ID", shell_complete=nodes)
@click.option("--detach", is_flag=True, help="Return once the node answers, and let it run on.")
@start_timeout_option
@output_option
def start(data: Path, node_id: str, detach: bool, timeout: float | None, output: str) -> None:
    """Start one node of a cluster that `up` has founded, with the configuration of the last `up`.

    A node whose directory was wiped starts too: as a learner, which becomes a voter once it has caught up.
    """
    patience_s = start_patience_s(timeout, detach=detach)
    manifest = require_manifest(data)
    if not manifest.complete:
        raise AdminError(f"the bootstrap of {data} was interrupted: `dledger up --data {data}` completes it")
    layout = manifest.layout(data)
    service = _service(layout, node_id)
    pid = service.pid()
    if pid is not None:
        raise AdminError(
            f"{node_id} is running already (pid {pid}): stop it with `dledger node stop --data {data} {node_id}`"
        )
    require_free((port, owner) for port, owner in layout.ports() if owner.endswith(f" {node_id}"))
    _write_missing_config(layout, manifest, service)
    _require_own_directory(service)
    if not detach:
        os.execv(service.command()[0], service.command())  # noqa: S606 - an argument list without a shell is the point
    with noted_signals() as check:
        process = service.spawn()
        try:
            answered = _await_answer(layout, service, process, patience_s, check)
        except KeyboardInterrupt:
            stop_started(service, process)
            raise
    if process.poll() is not None:
        raise StartError(f"{node_id} ended with exit code {process.returncode}: {service.last_words()}")
    if not answered:
        raise StartError(
            f"{node_id} (pid {process.pid}) does not answer, and got no further for {patience_s:g} s: "
            f"{service.last_words()}"
        )
    emit(NodeChange(node_id, process.pid, "started"), output, _render_change)


@node.command()
@data_option
@click.argument("node_id", metavar="NODE-ID", shell_complete=nodes)
@click.option("--now", is_flag=True, help="Leave at once instead of draining; no acknowledged message is lost by it.")
@output_option
def stop(data: Path, node_id: str, now: bool, output: str) -> None:
    """Stop one node: it hands its leadership over, goes on forwarding for `drain_ms` (35 s by default), and exits."""
    layout = require_manifest(data).layout(data)
    service = _service(layout, node_id)
    pid = service.pid()
    if pid is None:
        emit(NodeChange(node_id, None, "was not running"), output, _render_change)
        return
    if now:
        killed = stop_at_once({node_id: service}, say=partial(click.echo, err=True))
        emit(NodeChange(node_id, pid, "killed" if killed else "stopped"), output, _render_change)
        return
    if not stop_gracefully(service, STOP_PATIENCE_S):
        raise AdminError(
            f"{node_id} (pid {pid}) got no further with its stop for {STOP_PATIENCE_S:.0f} s "
            f"({service.stop_waits_for() or 'it does not say what it waits for'}): `--now` makes it leave at once"
        )
    emit(NodeChange(node_id, pid, "stopped" if node_id == NAMESRV else "drained and stopped"), output, _render_change)


@node.command()
@data_option
@click.argument("node_id", metavar="[NODE-ID]", required=False, shell_complete=nodes)
@output_option
@click.pass_context
def status(ctx: click.Context, data: Path, node_id: str | None, output: str) -> None:
    """Show one node, or all; lag counts the entries that the rest of the group has committed and the node has not.

    The exit code is 3 if what is shown does not answer, or a broker group among it has no leader.
    """
    layout = require_manifest(data).layout(data)
    if node_id:
        _service(layout, node_id)
    result = cluster_status(layout)
    if node_id:
        result = msgspec.structs.replace(
            result, processes=[one for one in result.processes if one.name == node_id], others=[], leaderless=[]
        )
    emit(result, output, render_status)
    ctx.exit(result.exit_code)


@node.command()
@data_option
@click.argument("node_id", metavar="NODE-ID", shell_complete=nodes)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Let the node vote although what it acknowledged or voted last may be missing.",
)
@output_option
def recover(data: Path, node_id: str, accept_loss: bool, output: str) -> None:
    """Let a stopped node vote again that lost its term and vote or its durable mark, or whose host went down under
    flush = async.

    Such a node waits for a leader that brings it up to date. Only if too many nodes lost something together there is
    none: then one node after the other is told to accept the loss, until they elect.
    """
    from dledger.errors import IdentityError
    from dledger.replica import boot, opening
    from dledger.store.disk import OsDisk
    from dledger.store.identity import DirectoryLock

    if not accept_loss:
        raise WrongUsageError(
            f"what {node_id} acknowledged last may be missing: give --accept-loss to let it vote nevertheless, or "
            "start it as it is, and a leader brings it up to date"
        )
    layout = require_manifest(data).layout(data)
    place = layout.place(node_id)
    if not any((place.directory / path).exists() for path in (boot.PATH, opening.STARTED)):
        raise AdminError(f"{place.directory} holds no log that a node has written: there is nothing to accept")
    try:
        lock = DirectoryLock.acquire(str(place.directory), os.getpid())
    except IdentityError as error:
        raise AdminError(f"{node_id} runs: {error}") from error
    try:
        boot.accept_loss(OsDisk(str(place.directory)))
    finally:
        lock.release()
    emit(NodeChange(node_id, None, "will vote from its next start on, whatever it lost"), output, _render_change)


def _service(layout: ClusterLayout, node_id: str) -> Service:
    known = services(layout)
    if node_id not in known:
        raise LayoutError(f"{layout.data_dir} has no node {node_id}; it has {', '.join(known)}")
    return known[node_id]


def _write_missing_config(layout: ClusterLayout, manifest: Manifest, service: Service) -> None:
    if service.config_file.exists():
        return
    overrides = stored_overrides(layout)
    if service.name == NAMESRV:
        write_namesrv_config(layout, overrides)
    else:
        write_broker_config(layout, manifest, layout.place(service.name), overrides)


def _require_own_directory(service: Service) -> None:
    """Raise `AdminError` for the configuration of another directory, whose log the process would write to."""
    try:
        table = tomllib.loads(service.config_file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return  # the process says it better
    named = table.get("data_dir", table.get("data", str(service.directory)))
    if named != str(service.directory):
        raise AdminError(
            f"{service.directory} was moved or copied: its configuration is for {named}, "
            "`dledger up` writes those of all processes anew"
        )


def _await_answer(
    layout: ClusterLayout,
    service: Service,
    process: subprocess.Popen[bytes],
    timeout_s: float,
    check: Callable[[], None],
) -> bool:
    """Wait until a process answers, ends, or gets no further for too long; tell whether it answers."""
    patience = Patience({service.name: service}, timeout_s, partial(click.echo, err=True))
    while process.poll() is None and not patience.is_over:
        check()
        if _answers(layout, service.name):
            return True
        patience.look({service.name: None})
        time.sleep(_POLL_S)
    return False


def _answers(layout: ClusterLayout, node_id: str) -> bool:
    if node_id == NAMESRV:
        return not is_free(layout.namesrv_port)
    return fetch_status(layout.place(node_id)) is not None


def _render_change(result: NodeChange) -> str:
    return f"{result.node} {result.state}" + (f" (pid {result.pid})" if result.pid else "")
