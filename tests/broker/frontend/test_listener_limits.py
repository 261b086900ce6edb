"""A client that floods, stalls, never reads or sends garbage: what it costs, and that nobody else notices."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from dledger.net.tls import TlsContext, TlsFiles
from dledger.testing.ports import free_ports
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import StartError
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import TURN_BYTES, Listener
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read, Request, read_request
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder
from dledger_serving.issuing import Authority

AUTHORITY = Authority("a test", timedelta(days=1))


class SettingsByHand:
    """Live keys that a test sets."""

    def __init__(self) -> None:
        self.changes = 0
        self.values: dict[str, str] = {}

    def set(self, **values: str) -> None:
        self.values |= values
        self.changes += 1


class Server:
    """A listener whose requests wait until `answer` is called, unless `auto` is set."""

    def __init__(self, tls: TlsContext | None = None, **limits: int) -> None:
        self.config = BrokerConfig(
            broker_group="b",
            node_id="n0",
            data_dir=Path("unused"),
            **limits,  # type: ignore[arg-type]
        )
        self.counters = BrokerCounters()
        self.lost: list[ClientConnection] = []
        self.settings = SettingsByHand()
        live = LiveConfig(self.config)
        live.follow(self.settings)
        self.listener = Listener("n0", live, self.counters, set(), self.on_reads, self.on_lost, tls)
        self.requests: list[Request] = []
        self.arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.auto: Callable[[Request], None] | None = None
        self.writes_now = False

    def on_reads(self, reads: Sequence[Read]) -> bool:
        for connection, data, frames in reads:
            for header_start, body_start, frame_end, serialize_type in frames:
                header, body = data[header_start:body_start], data[body_start:frame_end]
                try:
                    request = read_request(connection, serialize_type, header, body, 0.0)
                except FrameError as error:
                    connection.break_off(error)
                    break
                if request is not None:
                    connection.in_flight += 1
                    self.requests.append(request)
                    if self.auto is not None:
                        self.auto(request)
        self._announce()
        return self.writes_now

    def on_lost(self, connection: ClientConnection) -> None:
        self.lost.append(connection)
        self._announce()

    def _announce(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that changes with requests and closed connections."""
        async with asyncio.timeout(10), self.arrived:
            await self.arrived.wait_for(condition)


MakeServer = Callable[..., Awaitable[Server]]


@pytest_asyncio.fixture
async def make_server() -> AsyncIterator[MakeServer]:
    servers: list[Server] = []

    async def make(tls: TlsContext | None = None, **limits: int) -> Server:
        server = Server(tls, **limits)
        await server.listener.bind("127.0.0.1", 0)
        await server.listener.serve()
        servers.append(server)
        return server

    yield make
    for server in servers:
        await server.listener.close()


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()

    @classmethod
    async def connect(cls, server: Server) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", server.listener.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> RemotingCommand:
        async with asyncio.timeout(10):
            while (frame := self._decoder.next_frame()) is None:
                data = await self.reader.read(1 << 20)
                assert data, "the connection was closed"
                self._decoder.receive_data(data)
        return decode_command(frame)

    async def closed(self) -> bool:
        """Wait until the server closes the connection."""
        async with asyncio.timeout(10):
            try:
                while await self.reader.read(1 << 20):
                    pass
            except ConnectionError:
                pass
        return True


def frame(opaque: int = 1, body: bytes = b"") -> bytes:
    return encode_command(RemotingCommand(34, opaque=opaque, body=body))


def echo(request: Request) -> None:
    request.respond(body=request.body)


async def test_frames_arrive_whole_however_they_are_cut(make_server: MakeServer) -> None:
    server = await make_server()
    server.auto = echo
    client = await RawClient.connect(server)
    for byte in frame(7, b"slow"):
        client.writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await client.answer()).body == b"slow"
    await client.send(frame(8, b"a") + frame(9, b"b") + frame(10, b"c")[:5])
    assert [(await client.answer()).opaque for _ in range(2)] == [8, 9]
    await client.send(frame(10, b"c")[5:])
    assert (await client.answer()).body == b"c"


@pytest.mark.parametrize("size", [TURN_BYTES - 100, TURN_BYTES, 5 << 20])
async def test_a_frame_larger_than_the_buffer_between_small_ones(make_server: MakeServer, size: int) -> None:
    server = await make_server()
    server.auto = echo
    client = await RawClient.connect(server)
    body = bytes(range(256)) * (size // 256)
    sending = asyncio.create_task(client.send(frame(1, b"before") + frame(2, body) + frame(3, b"after")))
    answers = [await client.answer() for _ in range(3)]
    await sending
    assert [answer.body for answer in answers] == [b"before", body, b"after"]


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x08\x02\x00\x00\x02{}", b"\x16\x03\x01\x02\x00"],
)
async def test_garbage_closes_its_connection_and_no_other(make_server: MakeServer, garbage: bytes) -> None:
    server = await make_server()
    server.auto = echo
    good, bad = await RawClient.connect(server), await RawClient.connect(server)
    await bad.send(garbage)
    assert await bad.closed()
    assert server.counters.frames_refused == 1
    await good.send(frame(1, b"still here"))
    assert (await good.answer()).body == b"still here"


async def test_a_header_that_is_no_json_closes_its_connection(make_server: MakeServer) -> None:
    server = await make_server()
    client = await RawClient.connect(server)
    await client.send(b"\x00\x00\x00\x07\x00\x00\x00\x03abc")
    assert await client.closed()
    assert server.counters.frames_refused == 1


@pytest.mark.parametrize("fault", [RuntimeError("a fault of this node"), BaseException("a fault of any kind")])
async def test_a_fault_in_handling_closes_the_connections_of_its_turn(
    make_server: MakeServer, fault: BaseException
) -> None:
    server = await make_server()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def fail(_: Request) -> None:
        raise fault

    server.auto = fail
    client = await RawClient.connect(server)
    await client.send(frame(1))
    assert await client.closed()
    assert faults == [fault]


async def test_sound_requests_before_garbage_are_handled(make_server: MakeServer) -> None:
    server = await make_server()
    client = await RawClient.connect(server)
    await client.send(frame(1) + frame(2) + b"\xff" * 8)
    assert await client.closed()
    assert [request.opaque for request in server.requests] == [1, 2]


async def test_a_listener_that_stops_reading_handles_what_it_has_read_and_answers_that(make_server: MakeServer) -> None:
    server = await make_server()
    client = await RawClient.connect(server)
    await client.send(frame(1))
    await server.wait_for(lambda: len(server.requests) == 1)
    (connection,) = server.listener._connections
    assert isinstance(connection, ClientConnection)
    connection.data_received(frame(2))
    server.listener.stop_reading()
    assert [request.opaque for request in server.requests] == [1, 2]
    await client.send(frame(3))
    for request in server.requests:
        request.respond()
    assert [(await client.answer()).opaque for _ in range(2)] == [1, 2]
    await server.listener.close()
    assert await client.closed()
    assert [request.opaque for request in server.requests] == [1, 2]


async def test_max_frame_bytes(make_server: MakeServer) -> None:
    server = await make_server(max_frame_bytes=5 << 20)
    client = await RawClient.connect(server)
    await client.send((6 << 20).to_bytes(4, "big") + bytes(4))
    assert await client.closed()
    assert server.counters.max_frame_bytes == 1


PARTIAL = {"max_frame_bytes": 8 << 20, "max_partial_bytes": 16 << 20}
"""Two clients that have sent 5 MiB of a request each leave less than it takes to read everybody on."""


async def stalled(server: Server, count: int) -> list[RawClient]:
    """Clients that send more than half of a large request, and no more."""
    part = frame(1, bytes((8 << 20) - 4096))[: 5 << 20]
    clients = [await RawClient.connect(server) for _ in range(count)]
    for client in clients:
        client.writer.write(part)
    return clients


async def test_max_partial_bytes_holds_up_large_requests_and_nobody_else(make_server: MakeServer) -> None:
    server = await make_server(**PARTIAL)
    server.auto = echo
    held, good = await stalled(server, 20), await RawClient.connect(server)
    while server.counters.max_partial_bytes == 0:
        await good.send(frame(1, b"small"))
        assert (await good.answer()).body == b"small"
    for opaque in range(100):
        await good.send(frame(opaque, b"small"))
        assert (await good.answer()).opaque == opaque
        assert server.listener.request_memory.held_bytes <= 16 << 20
    for client in held:
        client.writer.transport.abort()
    await server.wait_for(lambda: len(server.lost) == len(held))
    assert server.listener.request_memory.held_bytes == 0


async def test_slow_sender_timeout_makes_room_for_large_requests_that_come(make_server: MakeServer) -> None:
    server = await make_server(**PARTIAL, slow_sender_timeout_ms=50)
    server.auto = echo
    large = await RawClient.connect(server)
    held = await stalled(server, 2)
    while server.counters.max_partial_bytes == 0:
        await large.send(frame(3))
        await large.answer()
    body = bytes((8 << 20) - 4096)
    sending = asyncio.create_task(large.send(frame(1, body) + frame(2, body)))
    assert [len((await large.answer()).body) for _ in range(2)] == [len(body)] * 2
    await sending
    assert 0 < server.counters.slow_sender_timeout == len(server.lost) <= len(held)


async def test_many_large_requests_at_a_time_are_all_served(make_server: MakeServer) -> None:
    server = await make_server(**PARTIAL)
    server.auto = lambda request: request.respond(body=b"%d" % len(request.body))
    clients = [await RawClient.connect(server) for _ in range(20)]
    bodies = [bytes((4 << 20) + number) for number in range(len(clients))]
    await asyncio.gather(*(client.send(frame(1, body)) for client, body in zip(clients, bodies, strict=True)))
    assert [int((await client.answer()).body) for client in clients] == [len(body) for body in bodies]
    assert server.counters.max_partial_bytes > 0
    assert server.listener.request_memory.held_bytes == 0
    assert not server.lost


async def test_a_request_in_the_smallest_pieces_takes_little_more_than_its_size(make_server: MakeServer) -> None:
    server = await make_server()
    connection = ClientConnection(server.listener)
    data = frame(1, bytes(200_000))
    tracemalloc.start()
    try:
        for at in range(len(data) - 1):
            connection.data_received(data[at : at + 1])
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1.5 * len(data)
    assert not server.requests


async def test_max_connections(make_server: MakeServer) -> None:
    server = await make_server(max_connections=2)
    server.auto = echo
    kept = [await RawClient.connect(server) for _ in range(2)]
    for client in kept:
        await client.send(frame())
        await client.answer()
    refused = await RawClient.connect(server)
    assert await refused.closed()
    assert (server.counters.max_connections, server.counters.connections_accepted) == (1, 2)
    await kept[0].send(frame(2))
    assert (await kept[0].answer()).opaque == 2


async def test_max_connections_per_host_while_the_node_runs(make_server: MakeServer) -> None:
    server = await make_server()
    first = await RawClient.connect(server)
    second = await RawClient.connect(server)
    for client in (first, second):
        await client.send(frame())
    await server.wait_for(lambda: len(server.requests) == 2)
    server.settings.set(max_connections_per_host="1")
    assert await (await RawClient.connect(server)).closed()
    assert (server.counters.max_connections_per_host, server.counters.max_connections) == (1, 0)
    await first.send(frame(2))  # those that are open stay
    await server.wait_for(lambda: len(server.requests) == 3)
    for client in (first, second):
        client.writer.close()
    await server.wait_for(lambda: len(server.lost) == 2)
    again = await RawClient.connect(server)
    await again.send(frame(3))
    await server.wait_for(lambda: len(server.requests) == 4)


async def paused(server: Server, frames: Sequence[bytes]) -> RawClient:
    """A client of a server with `max_in_flight=10`, of whose 12 requests 11 were read."""
    client = await RawClient.connect(server)
    await client.send(b"".join(frames[:11]))
    await server.wait_for(lambda: len(server.requests) == 11)
    assert server.counters.max_in_flight == 1
    await client.send(frames[11])
    return client


async def test_max_in_flight_pauses_reading_until_half_is_answered(make_server: MakeServer) -> None:
    server = await make_server(max_in_flight=10)
    client = await paused(server, [frame(number) for number in range(1, 13)])
    for request in server.requests[:5]:
        request.respond()
    for _ in range(5):
        await client.answer()
    assert len(server.requests) == 11
    server.requests[5].respond()
    await server.wait_for(lambda: len(server.requests) == 12)


async def test_requests_that_wait_for_messages_pause_reading_no_longer(make_server: MakeServer) -> None:
    """A connection's long polls may be many more than what it may have in flight."""
    server = await make_server(max_in_flight=10)
    await paused(server, [frame(number) for number in range(1, 13)])
    for request in server.requests[:11]:
        request.origin.begin_wait()
    await server.wait_for(lambda: len(server.requests) == 12)


async def test_requests_that_want_no_answer_pause_reading_as_well(make_server: MakeServer) -> None:
    """Nothing is written when they are done, behind which reading might go on."""
    server = await make_server(max_in_flight=10)
    oneway = [encode_command(RemotingCommand(34, opaque=number, flag=FLAG_ONEWAY)) for number in range(12)]
    await paused(server, oneway)
    for request in server.requests[:5]:
        request.respond()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(server.requests) == 11
    server.requests[5].respond()
    await server.wait_for(lambda: len(server.requests) == 12)


async def test_answers_of_one_turn_are_written_once(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await make_server()
    client = await RawClient.connect(server)
    await client.send(b"".join(frame(number) for number in range(1, 65)))
    await server.wait_for(lambda: len(server.requests) == 64)
    flushes: list[int] = []
    flush = ClientConnection.flush
    monkeypatch.setattr(ClientConnection, "flush", lambda self: (flushes.append(len(self._out)), flush(self)))
    for request in server.requests:
        request.respond()
    assert [(await client.answer()).opaque for _ in range(64)] == list(range(1, 65))
    assert flushes == [64]


@pytest.mark.parametrize("writes_now", [True, False])
async def test_answers_are_written_behind_their_requests_if_no_entry_of_the_turn_goes_first(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, *, writes_now: bool
) -> None:
    server = await make_server()
    client, flush, order = await RawClient.connect(server), ClientConnection.flush, list[str]()
    monkeypatch.setattr(ClientConnection, "flush", lambda self: (order.append("written"), flush(self)))

    def answer(request: Request) -> None:
        request.respond()
        asyncio.get_running_loop().call_soon(order.append, "what the turn has scheduled")

    server.writes_now, server.auto = writes_now, answer
    await client.send(frame(1))
    assert (await client.answer()).opaque == 1
    assert order == ["written", "what the turn has scheduled"][:: 1 if writes_now else -1]


async def test_what_was_answered_before_a_fault_is_written(make_server: MakeServer) -> None:
    server = await make_server()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    other, client = await RawClient.connect(server), await RawClient.connect(server)
    await other.send(frame(1))
    await server.wait_for(lambda: len(server.requests) == 1)

    def fail(_: Request) -> None:
        server.requests[0].respond()
        raise RuntimeError("a fault of this node")

    server.auto = fail
    await client.send(frame(2))
    assert (await other.answer()).opaque == 1


async def small_window_client(server: Server) -> socket.socket:
    """A client that never reads and whose kernel takes little for it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.listener.port))
    if server.listener.door is None:
        return client
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    return await asyncio.to_thread(context.wrap_socket, client, server_hostname="127.0.0.1")


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> TlsContext | None:
    if request.param == "plain":
        return None
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    return TlsContext.for_server(TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem"))


async def test_a_client_that_reads_nothing_is_slowed_down_then_dropped(
    make_server: MakeServer, tls: TlsContext | None
) -> None:
    server = await make_server(tls, pause_outgoing_bytes=1024, slow_reader_timeout_ms=50)
    client = await small_window_client(server)
    with client:
        client.sendall(frame())
        await server.wait_for(lambda: len(server.requests) == 1)
        server.requests[0].respond(body=bytes(8 << 20))
        await server.wait_for(lambda: bool(server.lost))
    assert server.counters.pause_outgoing_bytes == 1
    assert server.counters.slow_reader_timeout == 1


async def test_max_outgoing_bytes_drops_a_client_at_once(make_server: MakeServer, tls: TlsContext | None) -> None:
    server = await make_server(tls, pause_outgoing_bytes=1024, max_outgoing_bytes=12 << 20)
    client = await small_window_client(server)
    with client:
        client.sendall(frame(1) + frame(2) + frame(3))
        await server.wait_for(lambda: len(server.requests) == 3)
        for request in server.requests:
            request.respond(body=bytes(8 << 20))
            await asyncio.sleep(0)
        await server.wait_for(lambda: bool(server.lost))
    assert server.counters.max_outgoing_bytes == 1


async def test_a_slow_reader_that_catches_up_goes_on(make_server: MakeServer) -> None:
    server = await make_server(pause_outgoing_bytes=1024)
    server.auto = echo
    client = await RawClient.connect(server)
    body = bytes(4 << 20)
    sending = asyncio.create_task(client.send(frame(1, body) + frame(2, body) + frame(3, b"end")))
    assert [len((await client.answer()).body) for _ in range(3)] == [len(body), len(body), 3]
    await sending
    assert server.counters.slow_reader_timeout == 0


class SteppedLoop:
    """The running loop with a clock that a test puts ahead."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


async def test_idle_timeout_closes_silent_connections_only(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await make_server(idle_timeout_ms=120_000)
    server.auto = echo
    clock = SteppedLoop()
    monkeypatch.setattr(server.listener, "loop", clock)
    silent, alive = await RawClient.connect(server), await RawClient.connect(server)
    for opaque in range(1, 5):
        await alive.send(frame(opaque))
        await alive.answer()
        server.listener._scan_idle()
        clock.ahead_s += 50
    assert await silent.closed()
    assert server.counters.idle_timeout == 1
    await alive.send(frame(9))
    assert (await alive.answer()).opaque == 9


async def test_a_scan_that_raises_is_not_the_last_one(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await make_server(idle_timeout_ms=120_000)
    server.auto = echo
    clock = SteppedLoop()
    monkeypatch.setattr(server.listener, "loop", clock)
    silent = await RawClient.connect(server)
    await silent.send(frame(1))
    await silent.answer()
    server.listener._scan_idle()
    clock.ahead_s += 200
    timer = server.listener._idle_timer

    def fail(_: ClientConnection) -> None:
        raise KeyError("nobody expected that")

    with monkeypatch.context() as broken:
        broken.setattr(ClientConnection, "close_idle", fail)
        with pytest.raises(KeyError):
            server.listener._scan_idle()
    assert server.listener._idle_timer is not timer
    server.listener._scan_idle()
    assert await silent.closed()


async def test_a_port_in_use_is_named(make_server: MakeServer) -> None:
    server = await make_server()
    with pytest.raises(StartError, match=f"port {server.listener.port} on 127.0.0.1 is in use"):
        await Server().listener.bind("127.0.0.1", server.listener.port)


async def test_a_port_that_somebody_takes_at_the_same_time_is_named() -> None:
    server, [port] = Server(), free_ports(1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        await server.listener.bind("127.0.0.1", port)
        other.listen()
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is in use"):
            await server.listener.serve()
    await server.listener.close()
