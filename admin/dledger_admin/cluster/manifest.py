"""`DIR/cluster.json`: the parts of a local cluster, and whether its bootstrap is complete.

It is written before anything else, with the incarnation UUID of every node. So an interrupted bootstrap can only be
completed, never be started anew. Two identities for one node would be two voters with one name.

    format          1
    cluster         the cluster's name; every node's identity file repeats it
    complete        false until every node directory exists; from then on no voter is ever minted again
    segment_bytes   size of a log segment, part of each group's identity
    namesrv_port    the ports of the last `up`
    base_port
    engine          what decides in every node, part of each group's identity; absent: the native engine
    groups          {broker name: [{node_id, incarnation}, ...]}, the founding members
    proxy_port      the port of the proxy; absent: none
    proxy_http_port the port of the proxy's HTTP front; absent: none
    secured         whether every process is started with TLS and access control, whichever files are there
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dledger.types import NATIVE_ENGINE

from ..errors import LayoutError
from .files import write_durably
from .layout import ClusterLayout

FILE_NAME = "cluster.json"
FORMAT = 1


class Founder(msgspec.Struct, frozen=True):
    """A node as the bootstrap made it."""

    node_id: str
    incarnation: str


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of `cluster.json`; see the module's table."""

    format: int
    cluster: str
    complete: bool
    segment_bytes: int
    namesrv_port: int
    base_port: int
    groups: dict[str, list[Founder]]
    engine: str = NATIVE_ENGINE
    secured: bool = False
    proxy_port: int = 0
    proxy_http_port: int = 0

    def layout(self, data_dir: Path) -> ClusterLayout:
        """Return the layout of the cluster that lies in `data_dir`."""
        sizes = {len(founders) for founders in self.groups.values()}
        if len(sizes) != 1:
            raise LayoutError(f"{data_dir / FILE_NAME}: groups of equal size expected, found sizes {sorted(sizes)}")
        return ClusterLayout(
            data_dir,
            len(self.groups),
            sizes.pop(),
            self.namesrv_port,
            self.base_port,
            self.proxy_port,
            self.proxy_http_port,
        )


def read_manifest(data_dir: Path) -> Manifest | None:
    """Return the manifest of a cluster directory, None when there is none.

    Raises `LayoutError` when the file is not readable as one, or of a newer format.
    """
    path = data_dir / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LayoutError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        file_format = msgspec.json.decode(data, type=_FormatOnly).format
        if file_format > FORMAT:
            raise LayoutError(
                f"{path} has format {file_format}, this program knows up to {FORMAT}: use the version that wrote it"
            )
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise LayoutError(f"{path} is not a cluster manifest: {error}") from error


def require_manifest(data_dir: Path) -> Manifest:
    """Return the manifest of a cluster directory; raises `LayoutError` when there is no cluster."""
    manifest = read_manifest(data_dir)
    if manifest is None:
        raise LayoutError(
            f"{data_dir} holds no cluster ({FILE_NAME} is missing): `dledger up --data {data_dir}` makes one"
        )
    return manifest


def write_manifest(data_dir: Path, manifest: Manifest) -> None:
    """Replace the manifest durably."""
    write_durably(data_dir / FILE_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


class _FormatOnly(msgspec.Struct, frozen=True):
    format: int
