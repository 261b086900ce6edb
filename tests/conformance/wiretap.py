"""Wiretap between other vendors' clients and a cluster, which records every request and its answer.

Clients are given the tap's name server. Frames pass unchanged, with two exceptions. Answers about routes name the tap's
ports instead of the brokers', and so do the store hosts in pulled messages. So all requests to brokers pass the tap. A
client that connects to a dead broker is cut off.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import decode_command
from dledger_remoting.frame import Frame, FrameDecoder, join_frame
from dledger_remoting.hosts import HostAddress, pack_host

PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
CHUNK_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing a connection resets it."""


@dataclass(slots=True)
class Exchange:
    """Request to a broker, or from a broker (`pushed`), and its answer. Times are of the monotonic clock."""

    code: int
    ext: Mapping[str, str]
    body: bytes
    oneway: bool
    pushed: bool
    asked_at: float = field(default_factory=time.monotonic)
    answer: int | None = None
    remark: str | None = None
    answer_body: bytes = b""
    answered_at: float = 0.0

    def __str__(self) -> str:
        asked = f"{self.code} {request_code_name(self.code)} {json.dumps(dict(self.ext))} {self.body[:80]!r}"
        return (
            f"{asked} was answered {'not at all' if self.answer is None else self.answer} {self.remark or ''}".rstrip()
        )


class Wiretap:
    """Tap that listens on ports of its own until it is closed."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._exchanges: list[Exchange] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._addresses: dict[bytes, bytes] = {}
        self._hosts: dict[bytes, bytes] = {}
        for node_id in cluster.node_ids:
            address = cluster.client_address(node_id)
            own = self._listen(address, to_broker=True)
            self._addresses[b'"%s"' % address.encode()] = b'"%s"' % own.encode()
            self._hosts[pack_host(_host(address))] = pack_host(_host(own))
        self.namesrv = self._listen(cluster.namesrv, to_broker=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            sockets, self._open = self._open, set()
        for one in sockets:
            _cut(one)

    def exchanges(self, *codes: int) -> list[Exchange]:
        """Return the requests so far, in order of arrival, of some codes or all."""
        with self._lock:
            return [one for one in self._exchanges if not codes or one.code in codes]

    def surprises(self, expected: Callable[[Exchange], Collection[int]]) -> list[str]:
        """Return the requests with unexpected answers, and the expected ones."""
        return [
            f"{one}, expected: {', '.join(map(str, sorted(expected(one))))}"
            for one in self.exchanges()
            if not one.pushed and one.answer is not None and one.answer not in expected(one)
        ]

    @contextmanager
    def told(self, expected: Callable[[Exchange], Collection[int]]) -> Iterator[None]:
        """Add the unexpected answers and the unanswered requests to a failure inside."""
        try:
            yield
        except BaseException as error:
            silent = [one for one in self.exchanges() if one.answer is None and not one.oneway and not one.pushed]
            for line in [*self.surprises(expected), *(str(one) for one in silent if one.code not in PULLS)]:
                error.add_note(line)
            raise

    def _listen(self, address: str, *, to_broker: bool) -> str:
        host, _, port = address.rpartition(":")
        listener = socket.create_server((host, 0))
        self._keep(listener)
        threading.Thread(target=self._accept, args=(listener, (host, int(port)), to_broker), daemon=True).start()
        return f"{host}:{listener.getsockname()[1]}"

    def _keep(self, one: socket.socket) -> None:
        with self._lock:
            self._open.add(one)

    def _accept(self, listener: socket.socket, upstream: tuple[str, int], to_broker: bool) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(upstream, timeout=1.0)
                except OSError:
                    _cut(client)
                    continue
                server.settimeout(None)
                self._join(client, server, to_broker)

    def _join(self, client: socket.socket, server: socket.socket, to_broker: bool) -> None:
        asked: dict[int, Exchange] = {}
        pushed: dict[int, Exchange] = {}
        if to_broker:
            requests, answers = partial(self._note, asked, pushed, False), partial(self._note, pushed, asked, True)
        else:
            requests, answers = _as_it_is, partial(self._with_own, self._addresses)
        for source, sink, seen in ((client, server, requests), (server, client, answers)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._keep(source)
            threading.Thread(target=self._pump, args=(source, sink, seen), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, seen: Callable[[Frame], Frame]) -> None:
        """Forward the frames of one side, one at a time."""
        decoder = FrameDecoder()
        try:
            while data := source.recv(CHUNK_BYTES):
                decoder.receive_data(data)
                while (frame := decoder.next_frame()) is not None:
                    handed = seen(frame)
                    sink.sendall(join_frame(handed.serialize_type, handed.header, handed.body))
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _cut(source)
            _cut(sink)

    def _note(self, sent: dict[int, Exchange], received: dict[int, Exchange], by_broker: bool, frame: Frame) -> Frame:
        """Note a request in `sent`, or the answer to a request in `received`."""
        command = decode_command(frame)
        with self._lock:
            if not command.is_response:
                asked = Exchange(command.code, command.ext, command.body, command.is_oneway, by_broker)
                sent[command.opaque] = asked
                self._exchanges.append(asked)
                return frame
            answered = received.pop(command.opaque, None)
            if answered is None:
                return frame
            answered.answered_at = time.monotonic()
            answered.answer, answered.remark, answered.answer_body = command.code, command.remark, command.body
        return self._with_own(self._hosts, frame) if answered.code in PULLS else frame

    def _with_own(self, ports: Mapping[bytes, bytes], frame: Frame) -> Frame:
        body = frame.body
        for theirs, own in ports.items():
            body = body.replace(theirs, own)
        return Frame(frame.serialize_type, frame.header, body)


def _host(address: str) -> HostAddress:
    ip, _, port = address.rpartition(":")
    return HostAddress(ip, int(port))


def _as_it_is(frame: Frame) -> Frame:
    return frame


def _cut(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        one.shutdown(socket.SHUT_RDWR)
    one.close()
