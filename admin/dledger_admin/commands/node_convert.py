"""`dledger node convert`: another engine for a stopped node.

Log, term, vote and snapshots are the same with every engine. Only the identity in a node's directory says which engine
wrote them. The manifest and the configuration files name the engine of all nodes, and are written first. After an
interruption a node whose identity still names the other engine therefore refuses to start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from dledger.store.identity import Identity


class Conversion(msgspec.Struct, frozen=True):
    """Result of `node convert`: the node's former and present engine, and the nodes that still have another engine."""

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
    with up_lock(data):  # else a cluster that starts meanwhile would read half of the changes
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
        _require_same_group(layout, place, identity)
        changed = msgspec.structs.replace(manifest, engine=engine)
        if changed != manifest:
            write_manifest(data, changed)
        # This writes the files of all nodes: none may start with its old engine beside a converted node.
        write_config_files(layout, changed, stored_overrides(layout))
        if identity.engine != engine:
            write_identity(disk, msgspec.structs.replace(identity, engine=engine))
    finally:
        lock.release()
    return Conversion(place.node_id, identity.engine, engine, _find_remaining(layout, engine))


def _require_same_group(layout: ClusterLayout, place: NodePlace, identity: Identity) -> None:
    """Raise `AdminError` if the directories of a group's nodes come from different foundings."""
    from dledger_base.group_identity import GroupIdentity, tell_apart

    for other in layout.members(place.group):
        other_identity = _read_identity(other)
        if other_identity is None or not other_identity.group_id or not identity.group_id:
            continue
        if GroupIdentity.parse(other_identity.group_id).founding != GroupIdentity.parse(identity.group_id).founding:
            raise AdminError(
                f"{place.directory}: {tell_apart(identity.group_id, other_identity.group_id)} ({other.directory} has "
                "the second; nothing was changed)"
            )


def _read_identity(place: NodePlace) -> Identity | None:
    """Return the identity in a node's directory, None if there is none or it cannot be read."""
    from dledger.errors import IdentityError
    from dledger.store.disk import OsDisk
    from dledger.store.identity import read_identity

    try:
        return read_identity(OsDisk(str(place.directory))) if place.directory.is_dir() else None
    except IdentityError:
        return None  # its node does not start, and says why


def _find_remaining(layout: ClusterLayout, engine: str) -> list[str]:
    """Return the nodes whose directory names another engine."""
    remaining = []
    for place in layout.places():
        identity = _read_identity(place)
        if identity is not None and identity.engine != engine:
            remaining.append(place.node_id)
    return remaining


def _render(result: Conversion) -> str:
    text = f"{result.node} has engine {result.engine}"
    if result.before != result.engine:
        text += f", which was {result.before}"
    return text + (
        f"; still to be converted: {', '.join(result.remaining)}" if result.remaining else "; all nodes have it"
    )
