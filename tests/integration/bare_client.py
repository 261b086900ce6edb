"""Client that sends any bytes, and helpers that read a node's counters."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Self

from dledger_client.testing import LocalCluster
from dledger_remoting.codes import PROTOCOL_VERSION, RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import PullMessageHeader, SendMessageHeader, encode_ext

ANSWER_SECONDS = 30.0
TOPIC = "Limits"
_METRIC = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


class BareClient:
    """Connection to `address`, "host:port"."""

    def __init__(self, address: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        self._socket.settimeout(answer_seconds)
        self._socket.connect((host, int(port)))
        self._decoder = FrameDecoder()
        self._opaques = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send bytes unchanged. A connection that the other end has closed is no error."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def post(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        flag: int = 0,
        kind: int = 0,
        version: int = PROTOCOL_VERSION,
    ) -> int:
        """Send a request, its header serialized by `kind` 0 (JSON) or 1 (binary), and return its opaque."""
        opaque = next(self._opaques)
        command = RemotingCommand(
            code, opaque=opaque, flag=flag, version=version, ext=dict(ext or {}), body=body, serialize_type=kind
        )
        self.write(encode_command(command))
        return opaque

    def read(self) -> RemotingCommand:
        """Return the next frame. Raise `ConnectionError` if the other end closes, or `TimeoutError`."""
        while (frame := self._decoder.next_frame()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._decoder.receive_data(data)
        return decode_command(frame)

    def ask(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        kind: int = 0,
        version: int = PROTOCOL_VERSION,
    ) -> RemotingCommand:
        """Send a request and return its answer."""
        opaque = self.post(code, ext, body, kind=kind, version=version)
        answer = self.read()
        assert answer.opaque == opaque
        return answer

    def wait_closed(self) -> None:
        """Read until the other end closes, or fail after `ANSWER_SECONDS`."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass

    def send_message(self, body: bytes, *, topic: str = TOPIC) -> RemotingCommand:
        """Store a message in queue 0."""
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)


def send_fields(topic: str = TOPIC) -> dict[str, str]:
    """Return the ext fields of a send to queue 0 (310)."""
    return SendMessageHeader("bare", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0).encode_letters()


def pull_fields(offset: int, *, topic: str = TOPIC, suspend_ms: int = 0, messages: int = 32) -> dict[str, str]:
    """Return the ext fields of a pull of queue 0 (11) with its own subscription. `suspend_ms` makes it a long poll."""
    flags = 4 | (2 if suspend_ms else 0)
    return encode_ext(PullMessageHeader("bare", topic, 0, offset, messages, flags, 0, suspend_ms, 0, "*", "TAG"))


def metrics(address: str) -> dict[tuple[str, str], float]:
    """Return a node's current metrics, by name and value of the label `peer` ("" without one).

    `address` is the node's address for clients. A page is computed at most once a second, so the first page may be
    older than this call and is not used.
    """
    stale, fresh = _page(address), {}
    deadline = time.monotonic() + ANSWER_SECONDS
    while (fresh := _page(address))[_TIMERS] == stale[_TIMERS] and time.monotonic() < deadline:
        time.sleep(0.05)
    return fresh


_TIMERS = "dledger_loop_late_seconds_count", ""
"""Metric that grows all the time."""


def _page(address: str) -> dict[tuple[str, str], float]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port) + 2, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found: dict[tuple[str, str], float] = {}
    for match in _METRIC.finditer(text):
        peer = re.search(r'peer="([^"]*)"', match["labels"])
        found[match["name"], peer[1] if peer else ""] = float(match["value"])
    return found


def counters(address: str, *names: str) -> list[float]:
    """Return a node's counts about its clients, by the names of their configuration keys."""
    page = metrics(address)
    return [page[f"dledger_broker_{name}_total", ""] for name in names]


def counter(address: str, name: str) -> float:
    """Return one of these counts."""
    return counters(address, name)[0]


def until(condition: Callable[[], bool], what: str, seconds: float = ANSWER_SECONDS) -> None:
    """Poll `condition` until it holds. Fail with `what` if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def followers(cluster: LocalCluster) -> list[str]:
    """Return the ids of the nodes that do not lead."""
    leading = cluster.leader()
    return [node_id for node_id in cluster.node_ids if node_id != leading]


def logged(cluster: LocalCluster, text: str, node_id: str | None = None) -> None:
    """Wait until a node, by default the leader, has logged a text."""
    until(lambda: text in broker_log(cluster, node_id or cluster.leader()), f"a log line with {text!r}")


def broker_log(cluster: LocalCluster, node_id: str) -> str:
    """Return a node's log."""
    return (cluster.data_dir / node_id / "log" / "broker.log").read_text(encoding="utf-8")
