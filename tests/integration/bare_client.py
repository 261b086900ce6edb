"""A client that sends whatever bytes it is told to, and what a node counted meanwhile."""

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
    """One connection to `address`, "host:port". `receive_buffer_bytes` bounds what the kernel takes unread."""

    def __init__(self, address: str, *, receive_buffer_bytes: int = 0, answer_seconds: float = ANSWER_SECONDS) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
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
        """Send bytes as they are; a connection that the other end has closed is no error."""
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
        """The next frame. Raises `ConnectionError` if the other end closes, `TimeoutError`."""
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
        """Read until the other end closes; fails if it does not within `ANSWER_SECONDS`."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass

    def send_message(self, body: bytes, *, topic: str = TOPIC) -> RemotingCommand:
        """Store a message in queue 0."""
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)


def send_fields(topic: str = TOPIC) -> dict[str, str]:
    """The ext fields of a send to queue 0 (310)."""
    return SendMessageHeader("bare", topic, "TBW102", 4, 0, 0, 1_700_000_000_000, 0).encode_letters()


def pull_fields(offset: int, *, topic: str = TOPIC, suspend_ms: int = 0, messages: int = 32) -> dict[str, str]:
    """The ext fields of a pull of queue 0 (11) with its own subscription; `suspend_ms` makes it a long poll."""
    flags = 4 | (2 if suspend_ms else 0)
    return encode_ext(PullMessageHeader("bare", topic, 0, offset, messages, flags, 0, suspend_ms, 0, "*", "TAG"))


def metrics(address: str) -> dict[tuple[str, str], float]:
    """A node's metrics by name and value of the label `peer` ("" without one), given the address of its clients."""
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


def counter(address: str, name: str) -> float:
    """One of the numbers that a node counts about its clients, by the name of its configuration key."""
    return metrics(address)[f"dledger_broker_{name}_total", ""]


def until(condition: Callable[[], bool], what: str, seconds: float = ANSWER_SECONDS) -> None:
    """Poll `condition` until it holds; fails with `what` if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def broker_log(cluster: LocalCluster, node_id: str) -> str:
    """What a node has logged."""
    return (cluster.data_dir / node_id / "log" / "broker.log").read_text(encoding="utf-8")
