"""Every port reads data in pieces of any size: the twin of the chaos rig's `slicing`, which the simulator lacks.

The simulator delivers whole messages and knows no frames. So the connections of all four ports get pieces here, as a
link cuts them, down to single bytes. They must read everything that was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.net.connection import PeerConnection
from dledger.net.frames import Frame, FrameKind, encode_head
from dledger.net.handshake import Handshake, Hello
from dledger.net.settings import LinkCounters
from dledger.types import Lane
from dledger_base.port_bounds import PortBounds
from dledger_base.request_turns import RequestTurns
from dledger_broker.config import BrokerConfig
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import Listener
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read
from dledger_client.cluster.connection import Connection
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.connection import Connection as NameServerConnection
from dledger_namesrv.metrics import NameServerCounters
from dledger_namesrv.server import port_limits
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder

EXAMPLES = 50
SECRET = b"sixteen bytes or more"
sizes = st.lists(st.integers(1, 4) | st.integers(1, 1500), min_size=1, max_size=12)
"""Sizes of the pieces in bytes, used in turn, and again from the first."""
bodies = st.lists(st.binary(max_size=40) | st.binary(min_size=1000, max_size=3000), min_size=1, max_size=6)


def pieces(data: bytes, lengths: Sequence[int]) -> Iterator[bytes]:
    at = 0
    for length in cycle(lengths):
        if at >= len(data):
            return
        yield data[at : at + length]
        at += length


class Wire(asyncio.Transport):
    """Socket of one side that keeps everything written."""

    def __init__(self) -> None:
        socket = SimpleNamespace(setsockopt=lambda *_: None)
        super().__init__({"peername": ("127.0.0.1", 4), "sockname": ("127.0.0.1", 5), "socket": socket})
        self.written = b""
        self.closed = False
        self.reading = asyncio.Event()
        self.reading.set()

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def take(self) -> bytes:
        data, self.written = self.written, b""
        return data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there are no limits."""


def requests(sent: Sequence[bytes]) -> bytes:
    return b"".join(
        encode_command(RemotingCommand(10, number, ext={"of": str(len(body))}, body=body))
        for number, body in enumerate(sent)
    )


def answers_in(data: bytes) -> list[RemotingCommand]:
    decoder, found = FrameDecoder(), []
    decoder.receive_data(data)
    while (frame := decoder.next_frame()) is not None:
        found.append(decode_command(frame))
    return found


@settings(max_examples=EXAMPLES)
@given(bodies, sizes)
def test_the_client_port(sent: list[bytes], lengths: list[int]) -> None:
    received: list[bytes] = []

    def on_reads(reads: Sequence[Read]) -> bool:
        for _, data, frames in reads:
            received.extend(bytes(data[body:end]) for _, body, end, _ in frames)
        return True

    async def feed() -> None:
        config = BrokerConfig(broker_group="b", node_id="n", data_dir=Path("unused"))
        listener = Listener("n", LiveConfig(config), BrokerCounters(), set(), on_reads, lambda _: None)
        connection, wire = ClientConnection(listener), Wire()
        connection.connection_made(wire)
        for piece in pieces(requests(sent), lengths):
            connection.data_received(piece)
        listener.handle_reads()
        assert not wire.closed

    asyncio.run(feed())
    assert received == sent


@settings(max_examples=EXAMPLES)
@given(bodies, sizes)
def test_the_port_of_a_name_server(sent: list[bytes], lengths: list[int]) -> None:
    class Owner:
        config = NameServerConfig()
        counters = limit_counters = NameServerCounters()
        judges = False

        def __init__(self) -> None:
            self.bounds = PortBounds((), port_limits(self.config), self.counters, None)
            self.turns = RequestTurns(asyncio.get_running_loop())

        def admit(self, _connection: NameServerConnection) -> bool:
            return True

        def may_ask(self, _connection: NameServerConnection, _code: int) -> bool:
            return True

        def handle(self, request: RemotingCommand, _connection: NameServerConnection) -> RemotingCommand:
            return make_response(request, 0, body=bytes(request.body))

        def connection_lost(self, connection: NameServerConnection) -> None:
            """Do nothing."""

    async def feed() -> bytes:
        connection, wire = NameServerConnection(Owner(), 1), Wire()
        connection.connection_made(wire)
        for piece in pieces(requests(sent), lengths):
            # A connection reads no more once the time of a turn is over, which a slow machine reaches.
            await wire.reading.wait()
            connection.data_received(piece)
        await wire.reading.wait()
        assert not wire.closed
        return wire.written

    answers = answers_in(asyncio.run(feed()))
    assert [(answer.opaque, bytes(answer.body)) for answer in answers] == list(enumerate(sent))


@settings(max_examples=EXAMPLES)
@given(bodies, sizes)
def test_the_client_library(sent: list[bytes], lengths: list[int]) -> None:
    async def feed() -> list[bytes]:
        connection, wire = Connection("127.0.0.1:1", lambda *_: None, lambda _: None), Wire()
        connection.connection_made(wire)
        deadline = asyncio.get_running_loop().time() + 60.0
        calls = [asyncio.ensure_future(connection.call(RemotingCommand(10, body=body), deadline)) for body in sent]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked = answers_in(wire.take())
        answers = (encode_command(make_response(request, 0, body=bytes(request.body))) for request in asked)
        for piece in pieces(b"".join(answers), lengths):
            connection.data_received(piece)
        found = await asyncio.gather(*calls)
        connection.close()
        return [bytes(answer.body) for answer in found]

    assert asyncio.run(feed()) == sent


class Peers:
    """Owner of both ends of a connection between two nodes."""

    def __init__(self) -> None:
        self.open = 0
        self.frames: list[Frame] = []

    def on_open(self, _connection: PeerConnection) -> None:
        self.open += 1

    def on_frame(self, _connection: PeerConnection, frame: Frame) -> None:
        self.frames.append(Frame(frame.kind, bytes(frame.header), bytes(frame.payload)))

    def on_closed(self, connection: PeerConnection, error: Exception | None) -> None:
        """Do nothing: the connection ends with the test."""


def give(connection: PeerConnection, data: bytes, lengths: Sequence[int]) -> None:
    for piece in pieces(data, lengths):
        left = memoryview(piece)
        while left:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(left))
            buffer[:size] = left[:size]
            left = left[size:]
            connection.buffer_updated(size)


@settings(max_examples=EXAMPLES)
@given(bodies, sizes)
def test_the_peer_port(sent: list[bytes], lengths: list[int]) -> None:
    """The handshake in both directions, and then frames, arrive in pieces."""
    peers = Peers()
    near = Hello(1, "cluster", "group", 1 << 30, "a", "a-1", Lane.BULK, "host-a", 10912)
    far = Hello(1, "cluster", "group", 1 << 30, "b", "b-1", Lane.BULK, "host-b", 10912)

    async def feed() -> None:
        handshakes = Handshake.dial(near, SECRET, b"d" * 32, "b"), Handshake.accept(far, SECRET, b"a" * 32)
        ends = [PeerConnection(handshake, peers, LinkCounters(), 2.0) for handshake in handshakes]
        wires = [Wire(), Wire()]
        for end, wire in zip(ends, wires, strict=True):
            end.connection_made(wire)
        while any(wire.written for wire in wires):
            give(ends[1], wires[0].take(), lengths)
            give(ends[0], wires[1].take(), lengths)
        assert peers.open == 2
        for body in sent:
            head = encode_head(FrameKind.MESSAGE, b"header", len(body))
            ends[0].send(head, (body,) if body else (), len(head) + len(body))
        give(ends[1], wires[0].take(), lengths)
        assert not any(wire.closed for wire in wires)

    asyncio.run(feed())
    assert [frame.payload for frame in peers.frames] == sent
