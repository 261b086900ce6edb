"""Layout of a local cluster: its nodes, their names, and the ports and directories that are theirs.

group g (a, b, ... counted from 0), node k      broker-<g>-n<k>
brokerName of group g                           broker-<g>
client port                                     base port + 100 g + 10 k
peer port, HTTP port, alias port                client port + 1, + 2, + 3
directory                                       DIR/<node id>, DIR/namesrv, DIR/proxy
broker id                                       0 for the leader, k + 1 for a follower
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from ..errors import ImpossibleLayoutError, LayoutError

HOST = "127.0.0.1"
"""Every process of a local cluster listens here, and nowhere else."""

DEFAULT_GROUPS = 1
DEFAULT_NODES = 3
DEFAULT_NAMESRV_PORT = 9876
DEFAULT_BASE_PORT = 10911

MAX_NODES_PER_GROUP = 9
_GROUP_STEP = 100
_NODE_STEP = 10
_PEER_OFFSET = 1
_HTTP_OFFSET = 2
_ALIAS_OFFSET = 3
_LAST_PORT = 65535
_PROXY_PORT = "proxy port"
_PROXY_HTTP_PORT = "HTTP port of the proxy"


def group_name(number: int) -> str:
    """The name of group `number`, counted from 0: broker-a, broker-b, …"""
    return f"broker-{ascii_lowercase[number]}"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One broker process: its names, its ports on `HOST`, its directory."""

    node_id: str
    group: str
    number: int
    client_port: int
    directory: Path

    @property
    def peer_port(self) -> int:
        """The port to which the other members of the group connect."""
        return self.client_port + _PEER_OFFSET

    @property
    def http_port(self) -> int:
        """The port of `/status`, `/metrics`, `/healthz` and `/readyz`."""
        return self.client_port + _HTTP_OFFSET

    @property
    def alias_port(self) -> int:
        """The port at which the broker takes sends as a write alias."""
        return self.client_port + _ALIAS_OFFSET

    @property
    def follower_broker_id(self) -> int:
        """Broker id while it does not lead; the leader's is 0."""
        return self.number + 1

    @property
    def config_file(self) -> Path:
        """The configuration file with which the process starts."""
        return self.directory / "broker.toml"


@dataclass(frozen=True, slots=True)
class NamesrvPlace:
    """The name server process of a local cluster."""

    port: int
    directory: Path

    @property
    def config_file(self) -> Path:
        """The configuration file with which the process starts."""
        return self.directory / "namesrv.toml"


@dataclass(frozen=True, slots=True)
class ProxyPlace:
    """The proxy process of a local cluster. `http_port` is the port of its HTTP front, 0 for none."""

    port: int
    directory: Path
    http_port: int = 0

    @property
    def config_file(self) -> Path:
        """The configuration file with which the process starts."""
        return self.directory / "proxy.toml"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The numbers that decide everything else; see the module's table.

    With `proxy_port` 0 there is no proxy, with `proxy_http_port` 0 no HTTP front of the proxy.

    Raises `ImpossibleLayoutError` for numbers that make no cluster.
    """

    data_dir: Path
    groups: int = DEFAULT_GROUPS
    nodes: int = DEFAULT_NODES
    namesrv_port: int = DEFAULT_NAMESRV_PORT
    base_port: int = DEFAULT_BASE_PORT
    proxy_port: int = 0
    proxy_http_port: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= len(ascii_lowercase):
            raise ImpossibleLayoutError(f"--groups {self.groups}: a cluster has 1 to {len(ascii_lowercase)} groups")
        if self.nodes < 1 or self.nodes > MAX_NODES_PER_GROUP or self.nodes % 2 == 0:
            raise ImpossibleLayoutError(
                f"--nodes {self.nodes}: a group has an odd number of nodes from 1 to {MAX_NODES_PER_GROUP}, because an "
                f"even one bears no more failures than the odd one below it; give 3"
            )
        last = self.places()[-1]
        if self.base_port < 1 or last.alias_port > _LAST_PORT:
            raise ImpossibleLayoutError(
                f"--base-port {self.base_port}: {self.groups} group(s) of {self.nodes} nodes use the ports from the "
                f"base port to base port + {last.alias_port - self.base_port}, and all must lie in 1..{_LAST_PORT}"
            )
        if not 1 <= self.namesrv_port <= _LAST_PORT:
            raise ImpossibleLayoutError(f"--namesrv-port {self.namesrv_port}: a port lies in 1..{_LAST_PORT}")
        self._check_proxy_port("--proxy-port", self.proxy_port, _PROXY_PORT)
        self._check_proxy_port("--proxy-http-port", self.proxy_http_port, _PROXY_HTTP_PORT)
        if self.proxy_http_port and not self.proxy_port:
            raise ImpossibleLayoutError(
                f"--proxy-http-port {self.proxy_http_port} without a proxy: give --proxy-port, too"
            )
        for port, owner in self.ports()[1:]:
            if port == self.namesrv_port:
                raise ImpossibleLayoutError(
                    f"--namesrv-port {self.namesrv_port} is also the {owner}, which follows from --base-port "
                    f"{self.base_port}: choose another of the two"
                )

    def _check_proxy_port(self, option: str, number: int, words: str) -> None:
        if not 0 <= number <= _LAST_PORT:
            raise ImpossibleLayoutError(f"{option} {number}: a port lies in 1..{_LAST_PORT}, 0 is none")
        for port, owner in self.ports():
            if port == number and owner != words:
                raise ImpossibleLayoutError(f"{option} {number} is also the {owner}: choose another one")

    @property
    def namesrv(self) -> NamesrvPlace:
        """The name server."""
        return NamesrvPlace(self.namesrv_port, self.data_dir / "namesrv")

    @property
    def proxy(self) -> ProxyPlace | None:
        """The proxy, None if there is none."""
        if not self.proxy_port:
            return None
        return ProxyPlace(self.proxy_port, self.data_dir / "proxy", self.proxy_http_port)

    @property
    def namesrv_address(self) -> str:
        """The address that clients use: `host:port`."""
        return f"{HOST}:{self.namesrv_port}"

    @property
    def secret_file(self) -> Path:
        """The secret with which the nodes prove to each other that they belong together (mode 0600)."""
        return self.data_dir / "secret"

    def group_names(self) -> list[str]:
        """Return the broker names, group 0 first."""
        return [group_name(g) for g in range(self.groups)]

    def places(self) -> list[NodePlace]:
        """Return all nodes, group by group."""
        return [
            NodePlace(
                node_id=f"{group_name(g)}-n{k}",
                group=group_name(g),
                number=k,
                client_port=self.base_port + _GROUP_STEP * g + _NODE_STEP * k,
                directory=self.data_dir / f"{group_name(g)}-n{k}",
            )
            for g in range(self.groups)
            for k in range(self.nodes)
        ]

    def members(self, group: str) -> list[NodePlace]:
        """Return the nodes of one group."""
        return [place for place in self.places() if place.group == group]

    def place(self, node_id: str) -> NodePlace:
        """Return one node; raises `LayoutError` that lists the nodes there are."""
        for place in self.places():
            if place.node_id == node_id:
                return place
        known = ", ".join(place.node_id for place in self.places())
        raise LayoutError(f"{self.data_dir} has no node {node_id}; it has {known}")

    def ports(self) -> list[tuple[int, str]]:
        """Return every port that is listened on, with the words that name its owner."""
        owned_ports = [(self.namesrv_port, "name server port")]
        for place in self.places():
            owned_ports.append((place.client_port, f"client port of {place.node_id}"))
            owned_ports.append((place.peer_port, f"peer port of {place.node_id}"))
            owned_ports.append((place.http_port, f"HTTP port of {place.node_id}"))
            owned_ports.append((place.alias_port, f"alias port of {place.node_id}"))
        if self.proxy_port:
            owned_ports.append((self.proxy_port, _PROXY_PORT))
        if self.proxy_http_port:
            owned_ports.append((self.proxy_http_port, _PROXY_HTTP_PORT))
        return owned_ports
