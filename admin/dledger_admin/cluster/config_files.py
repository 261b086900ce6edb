"""Writer of the configuration files with which the processes of a local cluster start.

`up` computes ports, addresses and names from the layout and lays the values of `--config FILE` over them:

    top-level keys          for every broker
    [nodes.<node id>]       for one broker; addresses too, but no ports: a proxy can stand in any single link
    [namesrv]               for the name server
    [proxy]                 for the proxy, if there is one

Files that change are rewritten at each `up`. The overrides are kept in `DIR/overrides.toml`, so that `node start`
writes the same configuration again after a node directory was wiped.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dledger_base.similar_names import did_you_mean, some_of

from ..errors import AdminError
from .files import make_directory, write_durably
from .layout import HOST, ClusterLayout, NodePlace, ProxyPlace
from .manifest import Manifest
from .securing import secured_broker_keys, secured_namesrv_keys, secured_proxy_keys
from .toml_text import TomlTable, TomlValue, dump, merge

OVERRIDES_FILE = "overrides.toml"

_FROM_LAYOUT = ("node_id", "broker_group", "group_ordinal", "data_dir", "secret_file", "broker_id_when_follower")
_FROM_BASE_PORT = ("port", "peer_port", "http_port", "alias_port")
_PER_NODE = ("host", "peer_host", "advertised_host", "advertised_port", "peers", "log_file")
_IDENTITY_KEYS = ("cluster", "segment_bytes", "engine")
DEFAULT_SEGMENT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Overrides:
    """The contents of a `--config` file, by whom they concern."""

    brokers: TomlTable = field(default_factory=dict)
    nodes: dict[str, TomlTable] = field(default_factory=dict)
    namesrv: TomlTable = field(default_factory=dict)
    proxy: TomlTable = field(default_factory=dict)

    def text(self) -> str:
        """Return the overrides as the TOML they were read from."""
        table: TomlTable = dict(self.brokers)
        if self.nodes:
            table["nodes"] = dict(self.nodes)
        if self.namesrv:
            table["namesrv"] = self.namesrv
        if self.proxy:
            table["proxy"] = self.proxy
        return dump(table)

    @property
    def cluster(self) -> str | None:
        """The cluster's name, if the file gives one."""
        value = self.brokers.get("cluster")
        return value if isinstance(value, str) else None

    @property
    def segment_bytes(self) -> int | None:
        """Size of a log segment in bytes, if the file gives one."""
        value = self.brokers.get("segment_bytes")
        return value if isinstance(value, int) else None


def read_overrides(path: Path, layout: ClusterLayout) -> Overrides:
    """Read a `--config` file; raises `AdminError` naming the file and the key that cannot stand."""
    try:
        table: TomlTable = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AdminError(f"--config {path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AdminError(f"--config {path} is not TOML: {error}") from error
    return make_overrides(table, layout, f"--config {path}")


def make_overrides(table: TomlTable, layout: ClusterLayout, source: str) -> Overrides:
    """Return the overrides in a table. Raises `AdminError` naming its source and the key that cannot stand."""
    nodes = _pop_table(table, "nodes", source)
    namesrv = _pop_table(table, "namesrv", source, absent_if=list)
    proxy = _pop_table(table, "proxy", source)
    node_tables = {node_id: _pop_table(nodes, node_id, source) for node_id in list(nodes)}
    known = [place.node_id for place in layout.places()]
    for node_id, node_table in node_tables.items():
        if node_id not in known:
            raise AdminError(
                f"{source}: [nodes.{node_id}] names no node of this cluster, which has {some_of(known)}"
                f"{did_you_mean(node_id, known)}"
            )
        _refuse(node_table, (*_FROM_LAYOUT, *_IDENTITY_KEYS), source, "follows from the cluster's layout and identity")
        _refuse(node_table, _FROM_BASE_PORT, source, "follows from --base-port")
    _refuse(namesrv, ("port", "listenPort"), source, "follows from --namesrv-port")
    _refuse(namesrv, ("data",), source, "follows from the cluster's layout")
    _refuse(proxy, ("grpc_port", "grpcServerPort"), source, "follows from --proxy-port")
    _refuse(proxy, ("http_port",), source, "follows from --proxy-http-port")
    _refuse(proxy, ("namesrv", "namesrvAddr"), source, "follows from the cluster's layout")
    _refuse(table, _FROM_LAYOUT, source, "follows from the cluster's layout")
    _refuse(
        table, ("engine",), source, "follows from --engine at the cluster's founding, or from `dledger node convert`"
    )
    _refuse(table, _FROM_BASE_PORT, source, "follows from --base-port")
    _refuse(table, _PER_NODE, source, "differs from node to node: write it below [nodes.<node id>]")
    return Overrides(brokers=table, nodes=node_tables, namesrv=namesrv, proxy=proxy)


def stored_overrides(layout: ClusterLayout) -> Overrides:
    """Return the overrides of the last `up`."""
    path = layout.data_dir / OVERRIDES_FILE
    return read_overrides(path, layout) if path.exists() else Overrides()


def broker_table(layout: ClusterLayout, manifest: Manifest, place: NodePlace, overrides: Overrides) -> TomlTable:
    """Return the contents of one node's `broker.toml`."""
    computed: TomlTable = {
        "cluster": manifest.cluster,
        "broker_group": place.group,
        "group_ordinal": layout.group_names().index(place.group),
        "node_id": place.node_id,
        "broker_id_when_follower": place.follower_broker_id,
        "data_dir": str(place.directory),
        "secret_file": str(layout.secret_file),
        "segment_bytes": manifest.segment_bytes,
        "engine": manifest.engine,
        "host": HOST,
        "port": place.client_port,
        "peer_port": place.peer_port,
        "http_port": place.http_port,
        "alias_port": place.alias_port,
        "namesrv": [layout.namesrv_address],
        "peers": {
            other.node_id: {"address": f"{HOST}:{other.peer_port}"}
            for other in layout.members(place.group)
            if other.node_id != place.node_id
        },
        **(secured_broker_keys(layout) if manifest.secured else {}),
    }
    return merge(merge(computed, overrides.brokers), overrides.nodes.get(place.node_id, {}))


def namesrv_table(layout: ClusterLayout, manifest: Manifest, overrides: Overrides) -> TomlTable:
    """Return the contents of `namesrv.toml`."""
    computed: TomlTable = {
        "host": HOST,
        "port": layout.namesrv_port,
        "data": str(layout.namesrv.directory),
        **(secured_namesrv_keys(layout) if manifest.secured else {}),
    }
    return merge(computed, overrides.namesrv)


def proxy_table(layout: ClusterLayout, manifest: Manifest, place: ProxyPlace, overrides: Overrides) -> TomlTable:
    """Return the contents of `proxy.toml`."""
    computed: TomlTable = {
        "host": HOST,
        "grpc_port": place.port,
        "http_port": place.http_port,
        "namesrv": layout.namesrv_address,
        **(secured_proxy_keys(layout) if manifest.secured else {}),
    }
    return merge(computed, overrides.proxy)


def write_config_files(layout: ClusterLayout, manifest: Manifest, overrides: Overrides) -> None:
    """Write what every process reads, and keep the overrides for `node start`."""
    write_durably(layout.data_dir / OVERRIDES_FILE, overrides.text().encode())
    write_namesrv_config(layout, manifest, overrides)
    write_proxy_config(layout, manifest, overrides)
    for place in layout.places():
        write_broker_config(layout, manifest, place, overrides)


def write_broker_config(layout: ClusterLayout, manifest: Manifest, place: NodePlace, overrides: Overrides) -> None:
    """Write one node's `broker.toml`, making the directory if it was wiped."""
    make_directory(place.directory)
    _write(place.config_file, broker_table(layout, manifest, place, overrides))


def write_namesrv_config(layout: ClusterLayout, manifest: Manifest, overrides: Overrides) -> None:
    """Write `namesrv.toml`, making its directory if there is none."""
    make_directory(layout.namesrv.directory)
    _write(layout.namesrv.config_file, namesrv_table(layout, manifest, overrides))


def write_proxy_config(layout: ClusterLayout, manifest: Manifest, overrides: Overrides) -> None:
    """Write `proxy.toml` if there is a proxy, making its directory if there is none."""
    if layout.proxy is not None:
        make_directory(layout.proxy.directory)
        _write(layout.proxy.config_file, proxy_table(layout, manifest, layout.proxy, overrides))


def _write(path: Path, table: Mapping[str, TomlValue]) -> None:
    head = "# Written by `dledger up`, which rewrites it: lasting changes belong into the file given to its --config.\n"
    write_durably(path, (head + dump(table)).encode())


def _pop_table(table: TomlTable, key: str, source: str, absent_if: type | None = None) -> TomlTable:
    """Take the sub-table `key` out of `table`; a value of type `absent_if` is another key of that name and stays."""
    value = table.get(key)
    if value is None or (absent_if is not None and isinstance(value, absent_if)):
        return {}
    if not isinstance(value, Mapping):
        raise AdminError(f"{source}: {key} = {value!r} where a table [{key}] is expected")
    del table[key]
    return dict(value)


def _refuse(table: Mapping[str, TomlValue], keys: tuple[str, ...], source: str, why: str) -> None:
    for key in keys:
        if key in table:
            raise AdminError(f"{source}: {key} = {table[key]!r} cannot be set here, it {why}")
