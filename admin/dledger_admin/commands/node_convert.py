"""`dledger node convert`: another engine for a stopped node.

Log, term, vote and snapshots are the same with every engine; what names the engine is the identity of the directory.
The cluster's manifest names the one that all its nodes are to have: it is written first, so that after an interruption
a node whose identity still names the other engine refuses to start instead of running apart.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from dledger.types import ENGINES

from ..cluster.config_files import stored_overrides, write_config_files
from ..cluster.layout import ClusterLayout, NodePlace
from ..cluster.lifecycle import require_engine, services, up_lock
from ..cluster.manifest import require_manifest, write_manifest
from ..errors import AdminError
from ..output import emit, output_option
from .completing import nodes
from .options import data_option


class Conversion(msgspec.Struct, frozen=True):
    """Result of `node convert`: what the node's engine was and is, and which nodes have another one still."""

    node: str
    before: str
    engine: str
    remaining: list[str]


@click.command()
@data_option
@click.argument("node_id", metavar="NODE-ID", shell_complete=nodes)
@click.option("--engine", type=click.Choice(ENGINES), required=True, help="The engine that the node is to have.")
@output_option
def convert(data: Path, node_id: str, engine: str, output: str) -> None:
    """Give a stopped node another engine. Its log, its term and its vote stay what they are.

    Stop the whole cluster, convert every node of it, then start it: nodes with different engines do not speak with
    each other.
    """
    manifest = require_manifest(data)
    if not manifest.complete:
        raise AdminError(f"the bootstrap of {data} was interrupted: `dledger up --data {data}` completes it")
    place = manifest.layout(data).place(node_id)
    require_engine(engine)
    _require_stopped(manifest.layout(data))
    with up_lock(data):  # else a cluster that starts meanwhile would read half of it
        emit(_convert(data, place, engine), output, _render)


def _require_stopped(layout: ClusterLayout) -> None:
    running = sorted(name for name, service in services(layout).items() if service.pid() and name != "namesrv")
    if running:
        raise AdminError(
            f"{', '.join(running)} of {layout.data_dir} runs: all nodes of a group have one engine, stop them first"
            f" with `dledger down --data {layout.data_dir}` (nothing was changed)"
        )


def _convert(data: Path, place: NodePlace, engine: str) -> Conversion:
    from dledger.errors import IdentityError
    from dledger.store.disk import OsDisk
    from dledger.store.identity import DirectoryLock, read_identity, write_identity

    manifest = require_manifest(data)
    layout = manifest.layout(data)
    _require_stopped(layout)
    disk = OsDisk(str(place.directory))
    try:
        lock = DirectoryLock.acquire(str(place.directory), os.getpid())
    except (FileNotFoundError, NotADirectoryError):
        raise AdminError(
            f"{place.directory} is not there: a node that was wiped gets its engine when it starts"
        ) from None
    except IdentityError as error:
        raise AdminError(f"{place.node_id} runs: {error}") from error
    try:
        identity = read_identity(disk, str(place.directory))
        if identity is None:
            raise AdminError(f"{place.directory} holds no identity: an empty directory gets its engine when it starts")
        changed = msgspec.structs.replace(manifest, engine=engine)
        if changed != manifest:
            write_manifest(data, changed)
        # Of all nodes: one that is not converted yet must not start by its old configuration beside those that are.
        write_config_files(layout, changed, stored_overrides(layout))
        if identity.engine != engine:
            write_identity(disk, msgspec.structs.replace(identity, engine=engine))
    finally:
        lock.release()
    return Conversion(place.node_id, identity.engine, engine, _remaining(layout, engine))


def _remaining(layout: ClusterLayout, engine: str) -> list[str]:
    """Nodes whose directory names another engine."""
    from dledger.errors import IdentityError
    from dledger.store.disk import OsDisk
    from dledger.store.identity import read_identity

    left = []
    for place in layout.places():
        try:
            identity = read_identity(OsDisk(str(place.directory))) if place.directory.is_dir() else None
        except IdentityError:
            continue  # it does not start, and says why
        if identity is not None and identity.engine != engine:
            left.append(place.node_id)
    return left


def _render(result: Conversion) -> str:
    text = f"{result.node} has engine {result.engine}"
    if result.before != result.engine:
        text += f", which was {result.before}"
    return text + (
        f"; still to be converted: {', '.join(result.remaining)}" if result.remaining else "; all nodes have it"
    )
