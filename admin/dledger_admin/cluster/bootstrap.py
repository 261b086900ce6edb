"""Bootstrap of a cluster: makes its directory once, and completes it after an interruption.

The order keeps one node from ever getting two identities:

1. `cluster.json` is written and fsynced with the incarnation of every node, `complete` = false.
2. The group secret is made.
3. Each node directory is created under a temporary name with its identity file in it, fsynced, and renamed.
4. `cluster.json` is marked `complete`.

After a crash between two steps the next run continues. It does not repeat step 1 once the file is there, and the later
steps take their values from the file. After step 4 nothing here creates a voter. A node directory that is missing then
was wiped: it gets a new incarnation from the broker itself, and joins as a learner.
"""

from __future__ import annotations

import secrets
import shutil
import uuid
from pathlib import Path

import msgspec

from dledger.store.disk import OsDisk
from dledger.store.identity import FORMAT as IDENTITY_FORMAT
from dledger.store.identity import Identity, read_identity, write_identity
from dledger.types import NATIVE_ENGINE, Membership, ReplicaId
from dledger_base.group_identity import GroupIdentity

from ..errors import LayoutError
from .files import being_written, make_directory, sync_directory, write_durably
from .layout import ClusterLayout
from .manifest import FILE_NAME, FORMAT, Founder, Manifest, read_manifest, write_manifest

LOCK_FILE = "up.lock"
_SECRET_BYTES = 32
_LEFTOVER_FILES = {LOCK_FILE, f".{FILE_NAME}.tmp"}


def founding_manifest(
    layout: ClusterLayout, cluster: str | None, segment_bytes: int, engine: str = NATIVE_ENGINE
) -> Manifest:
    """Return the manifest of a cluster that does not exist yet. Without `cluster` it gets a random name."""
    return Manifest(
        format=FORMAT,
        cluster=cluster or f"cluster-{secrets.token_hex(4)}",
        complete=False,
        segment_bytes=segment_bytes,
        namesrv_port=layout.namesrv_port,
        base_port=layout.base_port,
        groups={
            group: [Founder(place.node_id, str(uuid.uuid4())) for place in layout.members(group)]
            for group in layout.group_names()
        },
        engine=engine,
    )


def check_data_dir(data_dir: Path) -> None:
    """Raise `LayoutError` unless `data_dir` is absent, empty, or the directory of a cluster."""
    if data_dir.exists() and not data_dir.is_dir():
        raise LayoutError(f"--data {data_dir} is a file: give a directory")
    if not data_dir.exists() or read_manifest(data_dir) is not None:
        return
    foreign = sorted(path.name for path in data_dir.iterdir() if path.name not in _LEFTOVER_FILES)
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise LayoutError(
            f"--data {data_dir} is not empty ({shown}) and holds no {FILE_NAME}: give the directory of a cluster, "
            f"an empty one, or one that does not exist"
        )


def complete_bootstrap(layout: ClusterLayout, manifest: Manifest) -> Manifest:
    """Do what is left of the four steps, and return the manifest marked complete.

    `manifest` is the one on disk, or, when there is none, `founding_manifest()`. Raises `LayoutError` when a node
    directory exists before step 4 with no identity, or with another one than the manifest's.
    """
    data_dir = layout.data_dir
    make_directory(data_dir, parents=True)
    sync_directory(data_dir.parent)
    if read_manifest(data_dir) is None:
        write_manifest(data_dir, manifest)
    if not layout.secret_file.exists():
        write_durably(layout.secret_file, secrets.token_hex(_SECRET_BYTES).encode() + b"\n", mode=0o600)
    if manifest.complete:
        return manifest
    for group, founders in manifest.groups.items():
        voters = tuple(ReplicaId(founder.node_id, founder.incarnation) for founder in founders)
        for founder in founders:
            identity = Identity(
                format=IDENTITY_FORMAT,
                cluster=manifest.cluster,
                group=group,
                node_id=founder.node_id,
                incarnation=founder.incarnation,
                segment_bytes=manifest.segment_bytes,
                initial=Membership(voters=voters),
                engine=manifest.engine,
                group_id=str(GroupIdentity.founded_by(founders[0].incarnation)),
            )
            _make_node_directory(data_dir / founder.node_id, identity)
    completed = msgspec.structs.replace(manifest, complete=True)
    write_manifest(data_dir, completed)
    return completed


def _make_node_directory(directory: Path, identity: Identity) -> None:
    if directory.exists():
        existing = read_identity(OsDisk(str(directory)))
        if existing is None or existing.incarnation != identity.incarnation:
            raise LayoutError(
                f"{directory} is there before the cluster's bootstrap is complete, and its identity is "
                f"{existing.incarnation if existing else 'missing'} where {FILE_NAME} says {identity.incarnation}: "
                f"move it away and run `dledger up` again"
            )
        return
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with being_written(directory):
        temporary.mkdir()
        write_identity(OsDisk(str(temporary)), identity)
        sync_directory(temporary)
        temporary.rename(directory)
        sync_directory(directory.parent)
