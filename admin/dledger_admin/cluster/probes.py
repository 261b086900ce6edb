"""Asks nodes over HTTP how they are, and the name server whom it lists."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import RemotingError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.route import decode_cluster_info

from .layout import HOST, NodePlace

LEADER_BROKER_ID = 0

_TIMEOUT_S = 1.0
_RECEIVE_BYTES = 1 << 16
_MAX_PARALLEL = 32


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a node's `/status`; positions are bytes in the log.

    `ready` is true once a leader has opened for writes; `voter` is false for a learner.
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

    @property
    def standing(self) -> str:
        """Its role, or `learner` while it counts for nothing."""
        return self.role if self.voter else "learner"

    @property
    def leads(self) -> bool:
        """Whether it is a leader that accepts writes."""
        return self.role == "leader" and self.ready


def fetch_status(place: NodePlace, timeout_s: float = _TIMEOUT_S) -> NodeStatus | None:
    """Return a node's status, None when it does not answer in time."""
    connection = http.client.HTTPConnection(HOST, place.http_port, timeout=timeout_s)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        return msgspec.json.decode(answer.read(), type=NodeStatus) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()


def fetch_all(places: Iterable[NodePlace]) -> dict[str, NodeStatus | None]:
    """Return the status of each node by node id, all asked at the same time."""
    wanted = list(places)
    with ThreadPoolExecutor(max_workers=min(_MAX_PARALLEL, max(1, len(wanted)))) as pool:
        return dict(zip((place.node_id for place in wanted), pool.map(fetch_status, wanted), strict=True))


def registered_leaders(namesrv_port: int, timeout_s: float = _TIMEOUT_S) -> set[str]:
    """Return the broker groups whose leader the name server lists; none when it does not answer in time."""
    try:
        with socket.create_connection((HOST, namesrv_port), timeout=timeout_s) as connection:
            connection.sendall(encode_command(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1)))
            decoder = FrameDecoder()
            while (frame := decoder.next_frame()) is None:
                data = connection.recv(_RECEIVE_BYTES)
                if not data:
                    return set()
                decoder.receive_data(data)
        info = decode_cluster_info(decode_command(frame).body)
    except (OSError, RemotingError):
        return set()
    return {name for name, group in info.broker_addr_table.items() if LEADER_BROKER_ID in group.broker_addrs}


def group_commits(statuses: dict[str, NodeStatus | None]) -> dict[str, int]:
    """Return the highest commit index that any node of each group knows."""
    commits: dict[str, int] = {}
    for status in statuses.values():
        if status is not None:
            commits[status.group] = max(commits.get(status.group, -1), status.commit_index)
    return commits
