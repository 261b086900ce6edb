"""`dledger node`: start, stop and look at single nodes of a local cluster."""

from __future__ import annotations

import os
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from dledger_base.similar_names import did_you_mean, some_of

from ..cluster.config_files import stored_overrides, write_broker_config, write_namesrv_config, write_proxy_config
from ..cluster.layout import ClusterLayout
from ..cluster.lifecycle import services
from ..cluster.manifest import Manifest, require_manifest
from ..cluster.ports import is_free, require_free
from ..cluster.probes import fetch_status
from ..cluster.processes import NAMESRV, PROXY, Service, stop_at_once, stop_gracefully, stop_started
from ..cluster.securing import with_security
from ..cluster.starting import Patience
from ..errors import AdminError, LayoutError, StartError, WrongUsageError
from ..help import HelpGroup
from ..output import emit, output_option, say
from ..signals import noted_signals
from .completing import nodes
from .node_changes import lead, remove
from .node_convert import convert
from .node_rescue import rescue
from .options import data_option, start_patience_s, start_timeout_option
from .status import cluster_status
from .status import render as render_status

_POLL_S = 0.03

STOP_PATIENCE_S = 60.0
"""Time limit in seconds for a stopping node that makes no progress: it waits for the same thing all the time."""


class NodeChange(msgspec.Struct, frozen=True):
    """Result of `node start`, `node stop` and `node recover`."""

    node: str
    pid: int | None
    state: str


@click.group(cls=HelpGroup)
def node() -> None:
    """Start, stop and look at single nodes, make one leader, remove it from its group, change its engine, or rescue it.

    In a cluster that `up` made, NODE-ID is broker-<group>-n<number>. `namesrv` can be started, stopped and shown, too.
    """


node.add_command(convert)
node.add_command(lead)
node.add_command(remove)
node.add_command(rescue)


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
    service = _find_service(layout, node_id)
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
@click.option("--now", is_flag=True, help="Stop at once instead of draining; no acknowledged message is lost.")
@output_option
def stop(data: Path, node_id: str, now: bool, output: str) -> None:
    """Stop one node: it hands its leadership over, goes on forwarding for `drain_ms` (35 s by default), and exits."""
    layout = require_manifest(data).layout(data)
    service = _find_service(layout, node_id)
    pid = service.pid()
    if pid is None:
        emit(NodeChange(node_id, None, "was not running"), output, _render_change)
        return
    if now:
        killed = stop_at_once({node_id: service}, say=say)
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

    The exit code is 3 if a shown process does not answer, or a shown broker group has no leader.
    """
    layout = require_manifest(data).layout(data)
    if node_id:
        _find_service(layout, node_id)
    result = cluster_status(layout)
    if node_id:
        result = msgspec.structs.replace(
            result,
            processes=[process for process in result.processes if process.name == node_id],
            others=[],
            leaderless=[],
        )
    emit(result, output, render_status)
    ctx.exit(result.exit_code)


@node.command()
@data_option
@click.argument("node_id", metavar="NODE-ID", shell_complete=nodes)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Let the node vote although its last acknowledgements or votes may be lost.",
)
@output_option
def recover(data: Path, node_id: str, accept_loss: bool, output: str) -> None:
    """Let a stopped node vote again after it lost its term and vote, or its durable mark.

    It is also for a node whose host went down under flush = async. Such a node waits for a leader that brings it up to
    date. Only if too many nodes lost something together, they cannot elect a leader. Then tell one node after the other
    to accept the loss, until they elect one.
    """
    from dledger.errors import IdentityError
    from dledger.replica.start import boot, opening
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


def _find_service(layout: ClusterLayout, node_id: str) -> Service:
    services_by_name = services(layout)
    if node_id not in services_by_name:
        hint = did_you_mean(node_id, services_by_name)
        raise LayoutError(f"{layout.data_dir} has no node {node_id}; it has {some_of(services_by_name)}{hint}")
    return services_by_name[node_id]


def _write_missing_config(layout: ClusterLayout, manifest: Manifest, service: Service) -> None:
    if service.config_file.exists():
        return
    manifest = with_security(layout, manifest)
    overrides = stored_overrides(layout)
    if service.name == NAMESRV:
        write_namesrv_config(layout, manifest, overrides)
    elif service.name == PROXY:
        write_proxy_config(layout, manifest, overrides)
    else:
        write_broker_config(layout, manifest, layout.place(service.name), overrides)


def _require_own_directory(service: Service) -> None:
    """Raise `AdminError` if the configuration names another directory: the process would write to the log there."""
    try:
        table = tomllib.loads(service.config_file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return  # the process itself reports the fault, with more detail
    configured = table.get("data_dir", table.get("data", str(service.directory)))
    if configured != str(service.directory):
        raise AdminError(
            f"{service.directory} was moved or copied: its configuration is for {configured}, "
            "`dledger up` writes those of all processes anew"
        )


def _await_answer(
    layout: ClusterLayout,
    service: Service,
    process: subprocess.Popen[bytes],
    timeout_s: float,
    check: Callable[[], None],
) -> bool:
    """Wait until a process answers, ends, or makes no progress for `timeout_s`. Return True if it answers."""
    patience = Patience({service.name: service}, timeout_s, say)
    while process.poll() is None and not patience.is_over:
        check()
        if _is_answering(layout, service.name):
            return True
        patience.look({service.name: None})
        time.sleep(_POLL_S)
    return False


def _is_answering(layout: ClusterLayout, node_id: str) -> bool:
    if node_id == NAMESRV:
        return not is_free(layout.namesrv_port)
    if node_id == PROXY:
        return not is_free(layout.proxy_port)
    return fetch_status(layout.place(node_id)) is not None


def _render_change(result: NodeChange) -> str:
    return f"{result.node} {result.state}" + (f" (pid {result.pid})" if result.pid else "")
