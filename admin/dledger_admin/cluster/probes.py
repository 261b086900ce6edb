"""Asks nodes over HTTP how they are, and the name server whom it lists."""

from __future__ import annotations

import http.client
import socket
import ssl
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dledger_base.tls_keys import ENFORCING
from dledger_namesrv.config import ConfigError, NameServerConfig, load_config
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import RemotingError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.route import decode_cluster_info

from ..http_calls import ask
from .layout import HOST, NamesrvPlace, NodePlace

LEADER_BROKER_ID = 0

_TIMEOUT_S = 1.0
_RECEIVE_BYTES = 1 << 16
_MAX_PARALLEL = 32
_WILDCARD_HOSTS = ("", "0.0.0.0", "::")


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a node's `/status`; positions are bytes in the log.

    `ready` is true once a leader has opened for writes; `voter` is false for a learner. `voters` and `learners` are all
    members of its group that it knows. `refusal` says why a leader takes no messages at the moment, or that the node's
    own disk is full. `disk_warning` says that its disk is above the watermark.
    """

    node_id: str
    incarnation: str = ""
    group: str
    role: str
    term: int
    leader_id: str | None = None
    commit_index: int
    applied_index: int
    first_position: int
    last_position: int
    durable_position: int
    ready: bool = False
    voter: bool = True
    voters: list[str] = []
    learners: list[str] = []
    refusal: str | None = None
    disk_warning: str | None = None

    @property
    def standing(self) -> str:
        """Its role, or `learner` while it counts for nothing."""
        return self.role if self.voter else "learner"

    @property
    def leads(self) -> bool:
        """True for a leader that accepts writes."""
        return self.role == "leader" and self.ready


def fetch_status(place: NodePlace, timeout_s: float = _TIMEOUT_S) -> NodeStatus | None:
    """Return a node's status, None when it does not answer in time."""
    try:
        code, body = _get(place, "/status", timeout_s)
        return msgspec.json.decode(body, type=NodeStatus) if code == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None


def fetch_obstacle(place: NodePlace, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Return why clients cannot be served through a node, as its `/readyz` says it, None when they can."""
    try:
        code, body = _get(place, "/readyz", timeout_s)
    except (OSError, http.client.HTTPException) as error:
        return f"{place.node_id} does not answer on port {place.http_port} ({error})"
    return None if code == http.HTTPStatus.OK else body.decode(errors="replace")


def _get(place: NodePlace, path: str, timeout_s: float) -> tuple[int, bytes]:
    answer = ask(http_host(place), place.http_port, "GET", path, {}, timeout_s)
    return answer.status, answer.body


def http_host(place: NodePlace) -> str:
    """Return where a node listens for HTTP: a file for `--config` may have given it an address of its own."""
    try:
        host = tomllib.loads(place.config_file.read_text(encoding="utf-8-sig")).get("host")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return HOST
    return host if isinstance(host, str) and host not in _WILDCARD_HOSTS else HOST


def fetch_all(places: Iterable[NodePlace]) -> dict[str, NodeStatus | None]:
    """Return the status of each node by node id, all asked at the same time."""
    place_list = list(places)
    with ThreadPoolExecutor(max_workers=min(_MAX_PARALLEL, max(1, len(place_list)))) as pool:
        return dict(zip((place.node_id for place in place_list), pool.map(fetch_status, place_list), strict=True))


def groups_clients_find(namesrv: NamesrvPlace, timeout_s: float = _TIMEOUT_S) -> set[str]:
    """Return the broker groups of which the name server lists the leader and knows the topics.

    The topic with the group's name stands for all topics that a leader registers. Only the leader itself knows whether
    these are all that it has from the start (`fetch_obstacle`). No group is found if the name server does not answer in
    time.
    """
    try:
        with _connect(namesrv, timeout_s) as connection:
            call = _NameServerClient(connection)
            info = decode_cluster_info(call(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body)
            led_groups = {
                name for name, group in info.broker_addr_table.items() if LEADER_BROKER_ID in group.broker_addrs
            }
            routes = {name: call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}) for name in led_groups}
    except (OSError, RemotingError):
        return set()
    return {name for name, route in routes.items() if route.code == ResponseCode.SUCCESS}


def answers_clients(namesrv: NamesrvPlace, timeout_s: float = _TIMEOUT_S) -> bool:
    """Return True if the name server answers in time."""
    try:
        with _connect(namesrv, timeout_s) as connection:
            _NameServerClient(connection)(RequestCode.GET_BROKER_CLUSTER_INFO, {})
    except (OSError, RemotingError):
        return False
    return True


def _connect(namesrv: NamesrvPlace, timeout_s: float) -> socket.socket:
    """Connect to a name server of this machine, over TLS if its configuration says so. Raises `OSError`.

    Its certificate is not checked: the questions are no secret, and no other process has its port. If it asks for a
    certificate, it is shown its own.
    """
    try:
        config = load_config(namesrv.config_file, {})
    except ConfigError:
        config = NameServerConfig()
    plain = socket.create_connection((HOST, namesrv.port), timeout=timeout_s)
    if config.tls != ENFORCING:
        return plain
    try:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if config.tls_cert_file is not None:
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        return context.wrap_socket(plain)
    except OSError:
        plain.close()
        raise


class _NameServerClient:
    """Requests to a name server, one after the other on one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = FrameDecoder()

    def __call__(self, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        """Return the answer; raises `OSError` when the connection ends, `RemotingError` for what cannot be read."""
        self._connection.sendall(encode_command(RemotingCommand(code, opaque=1, ext=ext)))
        while (frame := self._decoder.next_frame()) is None:
            data = self._connection.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the name server closed the connection")
            self._decoder.receive_data(data)
        return decode_command(frame)


def refusals(statuses: Mapping[str, NodeStatus | None]) -> list[str]:
    """Return a line for each node that takes no messages or has a full disk: why, and what to do."""
    return [f"{name}: {status.refusal}" for name, status in statuses.items() if status is not None and status.refusal]


def disk_warnings(statuses: Mapping[str, NodeStatus | None]) -> list[str]:
    """Return a line for each node whose disk is above the watermark and not full yet: how full, and what to do."""
    return [
        f"{name}: {status.disk_warning}"
        for name, status in statuses.items()
        if status is not None and status.disk_warning and not status.refusal
    ]


def group_commits(statuses: dict[str, NodeStatus | None]) -> dict[str, int]:
    """Return the highest commit index that any node of each group knows."""
    commits: dict[str, int] = {}
    for status in statuses.values():
        if status is not None:
            commits[status.group] = max(commits.get(status.group, -1), status.commit_index)
    return commits
