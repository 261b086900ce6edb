"""A client that floods, stalls, never reads or sends garbage is limited, and no other client notices."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from broker_in_process import Client, until

from dledger.testing.ports import free_ports
from dledger_base.issuing import Authority
from dledger_base.telling import LINES_OF_CLIENTS
from dledger_base.tls import TlsContext, TlsFiles
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import StartError
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import TURN_BYTES, Listener
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read, Request, read_request
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import join_frame

AUTHORITY = Authority("a test", timedelta(days=1))


class Server:
    """Listener whose requests wait until a test answers them, unless `auto` does."""

    def __init__(
        self, tls: TlsContext | None = None, auto: Callable[[Request], None] | None = None, **limits: int
    ) -> None:
        config = BrokerConfig(broker_group="b", node_id="n0", data_dir=Path("unused"), **limits)  # type: ignore[arg-type]
        self.counters = BrokerCounters()
        self.lost: list[ClientConnection] = []
        self.settings = SimpleNamespace(changes=0, values={})
        live = LiveConfig(config)
        live.follow(self.settings)
        self.is_on = False
        self.listener = Listener("n0", live, self.counters, set(), self.on_reads, self.on_lost, tls, judging=self)
        self.requests: list[Request] = []
        self.happened = asyncio.Event()
        self.auto = auto
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
        self.happened.set()
        return self.writes_now

    def on_lost(self, connection: ClientConnection) -> None:
        self.lost.append(connection)
        self.happened.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that changes with requests and closed connections."""
        async with asyncio.timeout(10):
            while not condition():
                self.happened.clear()
                await self.happened.wait()

    async def received(self, count: int) -> None:
        await self.wait_for(lambda: len(self.requests) == count)

    def opaques(self) -> list[int]:
        return [request.opaque for request in self.requests]

    async def answer(self, *megabytes: int) -> None:
        """Answer the requests with bodies of these sizes, each in a turn of its own."""
        for request, size in zip(self.requests, megabytes, strict=True):
            request.respond(body=bytes(size << 20))
            await asyncio.sleep(0)

    async def client(self) -> RawClient:
        return RawClient(*await asyncio.open_connection("127.0.0.1", self.listener.port))

    async def served(self, count: int, *, trusted: bool = False) -> list[RawClient]:
        """Connect clients of which each has had an answer."""
        clients = [await self.client() for _ in range(count)]
        for client in clients:
            await client.ask(frame())
            self.requests[-1].origin.is_trusted = trusted
        return clients

    async def refuses(self) -> bool:
        """Return whether a further connection is closed."""
        client = await self.client()
        await client.send(frame())
        return await client.is_closed()


MakeServer = Callable[..., Awaitable[Server]]


@pytest_asyncio.fixture
async def make_server() -> AsyncIterator[MakeServer]:
    servers: list[Server] = []

    async def make(tls: TlsContext | None = None, **keywords: Any) -> Server:
        server = Server(tls, **keywords)
        await server.listener.bind("127.0.0.1", 0)
        await server.listener.serve()
        servers.append(server)
        return server

    yield make
    for server in servers:
        await server.listener.close()


class RawClient(Client):
    """Client that sends bytes, and reads the answers in the order in which they come."""

    async def send(self, data: bytes) -> None:  # type: ignore[override]
        self.writer.write(data)
        await self.writer.drain()

    @property
    def writer(self) -> asyncio.StreamWriter:
        return self._writer

    async def answer(self) -> RemotingCommand:
        async with asyncio.timeout(10):
            while not self.received:
                await self._receive()
        return self.received.pop(0)

    async def ask(self, data: bytes) -> RemotingCommand:
        await self.send(data)
        return await self.answer()

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection, whatever it says before."""
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                while await self._reader.read(1 << 20):
                    pass
        return True


def frame(opaque: int = 1, body: bytes = b"") -> bytes:
    return encode_command(RemotingCommand(34, opaque=opaque, body=body))


def echo(request: Request) -> None:
    request.respond(body=request.body)


async def test_frames_cut_at_any_byte_arrive_whole(make_server: MakeServer) -> None:
    client = await (await make_server(auto=echo)).client()
    for byte in frame(7, b"slow"):
        client.writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await client.answer()).body == b"slow"
    await client.send(frame(8, b"a") + frame(9, b"b") + frame(10, b"c")[:5])
    assert [(await client.answer()).opaque for _ in range(2)] == [8, 9]
    assert (await client.ask(frame(10, b"c")[5:])).body == b"c"


@pytest.mark.parametrize("size", [TURN_BYTES - 100, TURN_BYTES, 5 << 20])
async def test_a_large_frame_arrives_whole_between_small_frames(make_server: MakeServer, size: int) -> None:
    client = await (await make_server(auto=echo)).client()
    body = bytes(range(256)) * (size // 256)
    sending = asyncio.create_task(client.send(frame(1, b"before") + frame(2, body) + frame(3, b"after")))
    assert [(await client.answer()).body for _ in range(3)] == [b"before", body, b"after"]
    await sending


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x08\x02\x00\x00\x02{}"),
        *(b"\x16\x03\x01\x02\x00", b"\x00\x00\x00\x07\x00\x00\x00\x03abc"),  # the last one has a header that is no JSON
    ],
)
async def test_garbage_closes_its_connection_and_no_other(make_server: MakeServer, garbage: bytes) -> None:
    server = await make_server(auto=echo)
    good, bad = await server.client(), await server.client()
    await bad.send(garbage)
    assert await bad.is_closed()
    assert server.counters.frames_refused == 1
    assert (await good.ask(frame(1, b"still here"))).body == b"still here"


@pytest.mark.parametrize("fault", [RuntimeError("a fault of this node"), BaseException("a fault of any kind")])
async def test_a_fault_in_handling_closes_the_connections_of_its_turn_and_keeps_back_no_answer(
    make_server: MakeServer, fault: BaseException
) -> None:
    server, faults = await make_server(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
    other, client = await server.client(), await server.client()
    await other.send(frame(1))
    await server.received(1)

    def fail(_: Request) -> None:
        server.requests[0].respond()
        raise fault

    server.auto = fail
    await client.send(frame(2))
    assert await client.is_closed()
    assert (await other.answer()).opaque == 1
    assert faults == [fault]


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 8, join_frame(0, b'{"extFields":{' + b'"a":"",' * 300 + b'"b":""}}')],
    ids=["no frame", "header beyond the limits without a number"],
)
async def test_sound_requests_before_garbage_are_handled(make_server: MakeServer, garbage: bytes) -> None:
    server = await make_server(auto=echo)
    client = await server.client()
    await client.send(frame(1) + frame(2, b"before") + garbage)
    assert (await client.answer()).opaque == 1
    assert (await client.answer()).body == b"before"
    assert await client.is_closed()
    assert server.opaques() == [1, 2]


async def test_a_listener_that_stops_reading_answers_the_requests_already_read(make_server: MakeServer) -> None:
    server = await make_server()
    client = await server.client()
    await client.send(frame(1))
    await server.received(1)
    (connection,) = server.listener._connections
    assert isinstance(connection, ClientConnection)
    connection.data_received(frame(2))
    server.listener.stop_reading()
    assert server.opaques() == [1, 2]
    await client.send(frame(3))
    await server.answer(0, 0)
    assert [(await client.answer()).opaque for _ in range(2)] == [1, 2]
    await server.listener.close()
    assert await client.is_closed()
    assert server.opaques() == [1, 2]


async def test_broken_frames_without_end_are_few_lines_in_the_log(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = await make_server(max_frame_bytes=5 << 20)
    for number in range(60):
        bad = await server.client()
        await bad.send(((6 << 20) + number).to_bytes(4, "big") + bytes(4))
        assert await bad.is_closed()
    assert (server.counters.frames_refused, server.counters.max_frame_bytes) == (60, 60)
    assert caplog.text.count("event=connection_closed") == LINES_OF_CLIENTS


PARTIAL = {"max_frame_bytes": 8 << 20, "max_partial_bytes": 16 << 20}
"""Limits at which two clients, with 5 MiB of a request each, leave too little memory to read all clients on."""


async def stalled(server: Server, count: int) -> list[RawClient]:
    """Connect clients that send more than half of a large request, and then nothing."""
    clients = [await server.client() for _ in range(count)]
    for client in clients:
        client.writer.write(frame(1, bytes((8 << 20) - 4096))[: 5 << 20])
    return clients


async def test_max_partial_bytes_delays_large_requests_and_no_small_requests(make_server: MakeServer) -> None:
    server = await make_server(auto=echo, **PARTIAL)
    held, good = await stalled(server, 20), await server.client()
    while server.counters.max_partial_bytes == 0:
        assert (await good.ask(frame(1, b"small"))).body == b"small"
    for opaque in range(100):
        assert (await good.ask(frame(opaque, b"small"))).opaque == opaque
        assert server.listener.bounds.request_memory.held_bytes <= 16 << 20
    for client in held:
        client.writer.transport.abort()
    await server.wait_for(lambda: len(server.lost) == len(held))
    assert server.listener.bounds.request_memory.held_bytes == 0


async def test_slow_sender_timeout_makes_room_for_large_requests_that_come(make_server: MakeServer) -> None:
    server = await make_server(auto=echo, **PARTIAL, slow_sender_timeout_ms=50)
    large, held = await server.client(), await stalled(server, 2)
    while server.counters.max_partial_bytes == 0:
        await large.ask(frame(3))
    body = bytes((8 << 20) - 4096)
    sending = asyncio.create_task(large.send(frame(1, body) + frame(2, body)))
    assert [len((await large.answer()).body) for _ in range(2)] == [len(body)] * 2
    await sending
    assert 0 < server.counters.slow_sender_timeout == len(server.lost) <= len(held)


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


async def test_a_connection_beyond_max_connections_is_closed(make_server: MakeServer) -> None:
    server = await make_server(auto=echo, max_connections=2)
    kept = await server.served(2)
    assert await server.refuses()
    assert (server.counters.max_connections, server.counters.connections_accepted) == (1, 2)
    assert (await kept[0].ask(frame(2))).opaque == 2


async def test_connections_without_an_account_make_room_while_access_control_is_on(make_server: MakeServer) -> None:
    """A request without a signature would otherwise keep a place for two minutes, and every place may be taken so."""
    server = await make_server(auto=echo, max_connections=3)
    server.is_on = True
    trusted, [stranger] = await server.served(2, trusted=True), await server.served(1)
    trusted += await server.served(1, trusted=True)
    assert await stranger.is_closed()
    assert await server.refuses()
    for client in trusted:
        assert (await client.ask(frame(9))).opaque == 9


async def test_connections_of_accounts_do_not_count_for_the_limit_of_their_host(make_server: MakeServer) -> None:
    server = await make_server(auto=echo, max_connections_per_host=2)
    server.is_on = True
    clients = [client for _ in range(5) for client in await server.served(1, trusted=True)]
    strangers = [await server.client() for _ in range(3)]
    for client in strangers:
        await client.send(frame(2))
    assert await strangers[2].is_closed()
    for client in (*clients, *strangers[:2]):
        client.writer.close()
    await server.wait_for(lambda: len(server.lost) == 7)
    await server.served(1)


async def test_max_connections_per_host_can_be_set_while_the_node_runs(make_server: MakeServer) -> None:
    server = await make_server(auto=echo)
    clients = await server.served(2)
    server.settings.values["max_connections_per_host"] = "1"
    server.settings.changes += 1
    assert await server.refuses()
    assert (server.counters.max_connections_per_host, server.counters.max_connections) == (1, 0)
    assert (await clients[0].ask(frame(2))).opaque == 2, "open connections stay"
    for client in clients:
        client.writer.close()
    await server.wait_for(lambda: len(server.lost) == 2)
    await server.served(1)


async def paused(server: Server, flag: int = 0) -> RawClient:
    """Return a client of a server with `max_in_flight=10`, of whose 12 requests 11 were read."""
    client = await server.client()
    frames = [encode_command(RemotingCommand(34, opaque=number, flag=flag)) for number in range(1, 13)]
    await client.send(b"".join(frames[:11]))
    await server.received(11)
    assert server.counters.max_in_flight == 1
    await client.send(frames[11])
    return client


@pytest.mark.parametrize("flag", [0, FLAG_ONEWAY], ids=["answered", "oneway"])
async def test_max_in_flight_pauses_reading_until_half_of_them_are_done(make_server: MakeServer, flag: int) -> None:
    """Reading goes on when half of the requests are done, also if they want no answer and none is written."""
    server = await make_server(max_in_flight=10)
    client = await paused(server, flag)
    for request in server.requests[:5]:
        request.respond()
    for _ in range(0 if flag else 5):
        await client.answer()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(server.requests) == 11
    server.requests[5].respond()
    await server.received(12)


async def test_requests_that_wait_for_messages_pause_reading_no_longer(make_server: MakeServer) -> None:
    """A connection may have many more long polls than requests in flight."""
    server = await make_server(max_in_flight=10)
    await paused(server)
    for request in server.requests[:11]:
        request.origin.begin_wait()
    await server.received(12)


async def test_answers_of_one_turn_are_written_once(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await make_server()
    client = await server.client()
    await client.send(b"".join(frame(number) for number in range(1, 65)))
    await server.received(64)
    flushes, flush = list[int](), ClientConnection.flush
    monkeypatch.setattr(ClientConnection, "flush", lambda self: (flushes.append(len(self._out)), flush(self)))
    for request in server.requests:
        request.respond()
    assert [(await client.answer()).opaque for _ in range(64)] == list(range(1, 65))
    assert flushes == [64]


@pytest.mark.parametrize("writes_now", [True, False])
async def test_answers_are_written_at_once_if_no_entry_of_the_turn_goes_first(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, *, writes_now: bool
) -> None:
    flush, order = ClientConnection.flush, list[str]()
    monkeypatch.setattr(ClientConnection, "flush", lambda self: (order.append("written"), flush(self)))

    def answer(request: Request) -> None:
        request.respond()
        asyncio.get_running_loop().call_soon(order.append, "what the turn has scheduled")

    server = await make_server(auto=answer)
    server.writes_now = writes_now
    assert (await (await server.client()).ask(frame(1))).opaque == 1
    assert order == ["written", "what the turn has scheduled"][:: 1 if writes_now else -1]


async def test_a_broken_connection_keeps_no_answer_from_other_clients(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await make_server()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    broken, other = await server.client(), await server.client()
    for number, client in enumerate((broken, other), 1):
        await client.send(frame(number))
        await server.received(number)
    flush, flushed = ClientConnection.flush, list[ClientConnection]()

    def fails_once(connection: ClientConnection) -> None:
        flushed.append(connection)
        if len(flushed) == 1:
            raise RuntimeError("the transport is closed")
        flush(connection)

    monkeypatch.setattr(ClientConnection, "flush", fails_once)
    for request in server.requests:
        request.respond()
    assert (await other.answer()).opaque == 2
    await server.wait_for(lambda: server.lost == flushed[:1])


async def small_window_client(server: Server) -> socket.socket:
    """Connect a client that never reads, and whose kernel buffers little."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.listener.port))
    if server.listener.bounds.door.tls is None:
        return client
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    return await asyncio.to_thread(context.wrap_socket, client, server_hostname="127.0.0.1")


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> TlsContext | None:
    if request.param == "plain":
        return None
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    return TlsContext.for_server(TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem"))


@pytest.mark.parametrize(
    ("limits", "megabytes", "counted"),
    [
        ({"slow_reader_timeout_ms": 50}, [8], ["pause_outgoing_bytes", "slow_reader_timeout"]),
        ({"max_outgoing_bytes": 12 << 20}, [8, 8, 8], ["max_outgoing_bytes"]),
    ],
    ids=["slowed down, then dropped", "dropped at once beyond max_outgoing_bytes"],
)
async def test_a_client_that_reads_nothing_is_dropped(
    make_server: MakeServer, tls: TlsContext | None, limits: dict[str, int], megabytes: list[int], counted: list[str]
) -> None:
    server = await make_server(tls, pause_outgoing_bytes=1024, **limits)
    with await small_window_client(server) as client:
        client.sendall(b"".join(frame(number) for number in range(len(megabytes))))
        await server.received(len(megabytes))
        await server.answer(*megabytes)
        await server.wait_for(lambda: bool(server.lost))
    assert [getattr(server.counters, name) for name in counted] == [1] * len(counted)


async def test_beyond_max_unread_bytes_the_client_that_leaves_most_is_dropped(make_server: MakeServer) -> None:
    """The part that answers pulls is told when a connection is clogged, and again once its client reads."""
    server = await make_server(max_unread_bytes=12 << 20, pause_outgoing_bytes=1 << 20)
    clogged = set[str]()
    flow = SimpleNamespace(clog=clogged.add, unclog=clogged.discard, end_turn_early=lambda: None)
    server.listener._flow = flow
    clients = [await small_window_client(server) for _ in range(3)]
    for number, client in enumerate(clients):
        client.sendall(frame(number))
        await server.received(number + 1)
    _, second, third = (request.origin.key for request in server.requests)
    await server.answer(2, 8, 12)
    await server.wait_for(lambda: len(server.lost) == 1)
    assert server.counters.max_unread_bytes == 1
    assert server.lost[0].key == third
    assert second in clogged
    await asyncio.to_thread(clients[1].recv, 8 << 20, socket.MSG_WAITALL)
    await until(lambda: second not in clogged)
    for client in clients:
        client.close()


async def test_a_slow_reader_that_catches_up_goes_on(make_server: MakeServer) -> None:
    server = await make_server(auto=echo, pause_outgoing_bytes=1024)
    client, body = await server.client(), bytes(4 << 20)
    sending = asyncio.create_task(client.send(frame(1, body) + frame(2, body) + frame(3, b"end")))
    assert [len((await client.answer()).body) for _ in range(3)] == [len(body), len(body), 3]
    await sending
    assert server.counters.slow_reader_timeout == 0


class SteppedLoop:
    """Running loop with a clock that a test puts ahead."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


async def test_idle_timeout_closes_only_silent_clients(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, clock = await make_server(auto=echo, idle_timeout_ms=120_000), SteppedLoop()
    monkeypatch.setattr(server.listener, "loop", clock)
    silent, alive = await server.served(2)
    for opaque in range(1, 5):
        await alive.ask(frame(opaque))
        server.listener._scan_idle()
        clock.ahead_s += 50
    assert await silent.is_closed()
    assert server.counters.idle_timeout == 1
    assert (await alive.ask(frame(9))).opaque == 9


async def test_idle_scans_go_on_after_an_exception(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clock = await make_server(auto=echo, idle_timeout_ms=120_000), SteppedLoop()
    monkeypatch.setattr(server.listener, "loop", clock)
    (silent,) = await server.served(1)
    server.listener._scan_idle()
    clock.ahead_s += 200
    timer = server.listener._idle_timer

    def fail(_: ClientConnection, __: int) -> None:
        raise KeyError("nobody expected that")

    with monkeypatch.context() as broken:
        broken.setattr(ClientConnection, "end_silence", fail)
        with pytest.raises(KeyError):
            server.listener._scan_idle()
    assert server.listener._idle_timer is not timer
    server.listener._scan_idle()
    assert await silent.is_closed()


async def test_a_port_taken_between_bind_and_listen_is_named(make_server: MakeServer) -> None:
    """A port in use is also named at once."""
    taken = (await make_server()).listener.port
    with pytest.raises(StartError, match=f"port {taken} on 127.0.0.1 is in use"):
        await Server().listener.bind("127.0.0.1", taken)
    server, [port] = Server(), free_ports(1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        await server.listener.bind("127.0.0.1", port)
        other.listen()
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is in use"):
            await server.listener.serve()
    await server.listener.close()


@pytest.mark.parametrize("serialize_type", [0, 1])
@pytest.mark.parametrize(
    ("ext", "says"),
    [({str(number): "" for number in range(300)}, "more than"), ({"i": "x" * 300_000}, "the limit is")],
    ids=["many", "long"],
)
async def test_a_header_beyond_the_limits_is_answered_and_not_decoded(
    make_server: MakeServer, serialize_type: int, ext: dict[str, str], says: str
) -> None:
    server = await make_server(auto=echo)
    client = await server.client()
    bomb, silent = (
        encode_command(RemotingCommand(310, opaque=opaque, flag=flag, ext=ext, serialize_type=serialize_type))
        for opaque, flag in ((2, 0), (3, FLAG_ONEWAY))
    )
    await client.send(frame(1) + bomb + silent + frame(4, b"behind"))
    answers = {(answer := await client.answer()).opaque: answer for _ in range(3)}
    assert (answers[1].code, answers[2].code, answers[4].body) == (0, 13, b"behind")
    assert says in (answers[2].remark or "")
    assert server.opaques() == [1, 4]
    assert server.counters.headers_refused == 2


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_an_unauthenticated_client_gets_memory_only_for_codes_with_large_bodies(
    make_server: MakeServer, is_trusted: bool
) -> None:
    """The memory is from a small budget of its own."""
    server = await make_server(auto=echo)
    server.is_on = True
    sender, asker = await server.served(2, trusted=is_trusted)
    for client, code in ((sender, RequestCode.SEND_MESSAGE_V2), (asker, RequestCode.GET_MAX_OFFSET)):
        await client.send(encode_command(RemotingCommand(code, opaque=7, body=bytes(500_000)))[:-1])
    if is_trusted:
        await until(lambda: server.listener.bounds.request_memory.held_bytes > 900_000)
    else:
        assert await asker.is_closed()
        await until(lambda: server.listener.bounds.stranger_memory.held_bytes > 400_000)
    await sender.send(b"\0")
    await server.received(3)
