"""A connection pipelines requests, keeps deadlines, and its errors say whether a request may have arrived."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from client_fakes import CLOSE, FakeServer, HandClock, until

from dledger_base.addresses import NEXT_ADDRESS_SECONDS
from dledger_client import ClientClosedError, ConnectError, ConnectionLostError, RequestTimeoutError
from dledger_client.cluster.pool import ConnectionPool
from dledger_remoting.codes import LanguageCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.hosts import HostAddress
from dledger_remoting.speech import Speech


class Server(FakeServer):
    async def handle(self, command, writer):
        return make_response(command, 0, ext=command.ext)


@pytest.fixture
async def server():
    server = Server()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def requests():
    return []


@pytest.fixture
async def pool(requests):
    pool = ConnectionPool(lambda _connection, command: requests.append(command))
    yield pool
    await pool.close()


@pytest.fixture
async def connection(server, pool):
    return await pool.get(server.address, soon())


def soon(seconds: float = 60) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_answers_find_their_requests_in_any_order(server, connection):
    async def late(command):
        await asyncio.sleep(random.random() / 50)
        return make_response(command, 0, ext=command.ext)

    server.on[1] = late
    answers = await asyncio.gather(
        *(connection.call(RemotingCommand(1, ext={"n": str(number)}), soon()) for number in range(100))
    )
    assert [answer.ext["n"] for answer in answers] == [str(number) for number in range(100)]


async def test_a_request_sent_for_another_client_keeps_that_clients_language(server, connection):
    got = []
    server.on[1] = lambda command: got.append(command.language) or make_response(command, 0)
    for ext in ({}, Speech(HostAddress("192.0.2.7", 1)).ext):
        await connection.call(RemotingCommand(1, language=LanguageCode.GO, ext=ext), soon())
    assert got == [LanguageCode.PYTHON, LanguageCode.GO]


async def test_each_request_has_its_own_deadline(server, connection):
    server.on[1] = lambda _: None
    short = asyncio.create_task(connection.call(RemotingCommand(1), soon(0.01)))
    long = asyncio.create_task(connection.call(RemotingCommand(1), soon(60)))
    with pytest.raises(RequestTimeoutError) as failure:
        await short
    assert failure.value.outcome == "unknown"
    assert connection.pending == 1
    assert (await connection.call(RemotingCommand(2), soon())).code == 0
    long.cancel()


async def test_a_lost_connection_fails_everything_under_way_and_the_next_one_is_new(server, pool, connection):
    server.on[1] = lambda _: None
    server.on[2] = lambda _: CLOSE
    waiting = [asyncio.create_task(connection.call(RemotingCommand(1), soon())) for _ in range(5)]
    with pytest.raises(ConnectionLostError) as failure:
        await connection.call(RemotingCommand(2), soon())
    assert failure.value.outcome == "unknown"
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(error, ConnectionLostError) for error in errors)
    with pytest.raises(ConnectError):
        await connection.call(RemotingCommand(3), soon())
    again = await pool.get(server.address, soon())
    assert (await again.call(RemotingCommand(3), soon())).code == 0


async def test_callers_share_one_connection(server, pool):
    connections = await asyncio.gather(*(pool.get(server.address, soon()) for _ in range(20)))
    assert len(set(map(id, connections))) == 1
    await until(lambda: len(server.writers) == 1)


async def test_a_later_call_does_not_overtake_calls_that_wait_for_a_connection(server):
    """The next commit must not overtake a commit that waits for a connection."""
    arrived, later = [], []
    server.on[1] = lambda command: arrived.append(command.ext["n"]) or make_response(command, 0)

    async def call(number):
        connection = await pool.get(server.address, soon())
        await connection.call(RemotingCommand(1, ext={"n": str(number)}), soon())

    def connected(_connection):
        later.extend(asyncio.create_task(call(number)) for number in range(3, 6))

    pool = ConnectionPool(lambda *_: None, on_connected=connected)
    await asyncio.gather(*(call(number) for number in range(3)))
    await asyncio.gather(*later)
    await pool.close()
    assert arrived == [str(number) for number in range(6)]


async def test_a_refused_connection_has_the_outcome_not_sent(pool):
    server = Server()
    await server.start()
    await server.stop()
    with pytest.raises(ConnectError, match=f"^cannot connect to {server.address}: Connection refused$") as failure:
        await pool.get(server.address, soon())
    assert failure.value.outcome == "not_sent"


@pytest.mark.parametrize(
    "address", ["names..example:9876", "x" * 64 + ":1", "a\0b:1", "localhost", ":1", "a:65536", "a:١"]
)
async def test_an_invalid_address_has_the_outcome_not_sent(pool, address):
    with pytest.raises(ConnectError, match=r"is no host name|expected ") as failure:
        await pool.get(address, soon())
    assert failure.value.outcome == "not_sent"


async def test_requests_of_the_server_are_handed_over(server, pool, requests):
    await pool.get(server.address, soon())
    await until(lambda: server.writers)
    notice = RemotingCommand(40, opaque=1_000_000_000, flag=FLAG_ONEWAY, ext={"consumerGroup": "CG"})
    for writer in server.writers:
        writer.write(encode_command(notice))
    await until(lambda: requests)
    assert (requests[0].code, requests[0].ext) == (40, {"consumerGroup": "CG"})


@pytest.mark.parametrize("waits", [False, True])
async def test_garbage_ends_the_connection_and_fails_waiting_calls_or_is_logged(server, connection, caplog, waits):
    server.on[1] = lambda _: None
    calls = [asyncio.create_task(connection.call(RemotingCommand(1), soon()))] if waits else []
    await until(lambda: server.writers and len(server.received) == len(calls))
    for writer in server.writers:
        writer.write(b"\xff" * 64)
    await until(lambda: not connection.is_open)
    for call in calls:
        with pytest.raises(ConnectionLostError, match="protocol"):
            await call
    logged = [(record.levelname, server.address in record.getMessage()) for record in caplog.records]
    assert logged == ([] if waits else [("WARNING", True)])


async def test_a_closed_pool_opens_nothing(server, pool):
    await pool.get(server.address, soon())
    await pool.close()
    with pytest.raises(ClientClosedError):
        await pool.get(server.address, soon())


async def test_requests_of_one_event_loop_turn_leave_in_one_write(connection):
    writes = []
    transport = connection._transport
    connection._transport = type(
        "Recorder",
        (),
        {"write": lambda _, data: (writes.append(data), transport.write(data)), "is_closing": lambda _: False},
    )()
    await asyncio.gather(*(connection.call(RemotingCommand(1), soon()) for _ in range(50)))
    connection._transport = transport
    assert len(writes) == 1


async def test_a_connection_that_no_longer_brings_anything_is_replaced(server, pool, connection):
    server.on[1] = lambda _: None
    with HandClock() as clock:
        waiting = [asyncio.create_task(connection.call(RemotingCommand(1), soon(seconds))) for seconds in (1.5, 60)]
        await clock.until(lambda: len(server.received) == 2)
        clock.advance(1.5)
        with pytest.raises(RequestTimeoutError):
            await waiting[0]
        again = asyncio.create_task(connection.call(RemotingCommand(1), soon(1.5)))
        await clock.until(lambda: len(server.received) == 3)
        clock.advance(1.5)
        await clock.until(lambda: all(task.done() for task in (again, waiting[1])))
        with pytest.raises(RequestTimeoutError):
            await again
        with pytest.raises(ConnectionLostError, match="nothing came for 3 s"):
            await waiting[1]
    assert await pool.get(server.address, soon()) is not connection


@pytest.mark.parametrize(
    "case",
    ["it brings something", "its requests are expired early", "a request had no time", "a request was cancelled"],
)
async def test_a_timed_out_request_alone_does_not_close_its_connection(server, pool, connection, case):
    server.on[1] = lambda _: None
    with HandClock() as clock:
        waiting = asyncio.create_task(connection.call(RemotingCommand(1), soon(60), to_leader=True))
        await clock.until(lambda: server.received)
        clock.advance(58)
        if case == "it brings something":
            await connection.call(RemotingCommand(2), soon())
            clock.advance(2)
        elif case == "its requests are expired early":
            other = asyncio.create_task(connection.call(RemotingCommand(1), soon(60)))
            await clock.until(lambda: len(server.received) == 2)
            connection.expire_leader_requests_by(soon(0.5))
            clock.advance(0.5)
            with pytest.raises(RequestTimeoutError):
                await waiting
            assert not other.done(), "it was not sent to a leader as such"
            other.cancel()
        else:
            waiting.cancel()
            if case == "a request was cancelled":
                await asyncio.wait((waiting,))
                clock.advance(10)
            seconds = 2 if case == "a request was cancelled" else 0.9
            waiting = asyncio.create_task(connection.call(RemotingCommand(1), soon(seconds)))
            await clock.until(lambda: len(server.received) == 2)
            clock.advance(seconds)
        with pytest.raises(RequestTimeoutError):
            await waiting
    assert await pool.get(server.address, soon()) is connection


async def test_a_fast_writer_waits_until_the_server_reads(server, connection):
    [writer] = server.writers
    writer.transport.pause_reading()
    frame = encode_command(RemotingCommand(1, flag=FLAG_ONEWAY, body=bytes(1 << 20)))
    sent = 0
    async with asyncio.timeout(10):
        while not connection._write_paused:
            await connection.writable()
            connection.send_frame(frame)
            sent += 1
            await asyncio.sleep(0)
    waiting = asyncio.create_task(connection.writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    writer.transport.resume_reading()
    await waiting
    await until(lambda: len(server.received) == sent)


async def test_waiting_to_write_ends_with_the_connection(connection):
    connection.pause_writing()
    waiting = asyncio.create_task(connection.writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.close()
    await waiting


@pytest.mark.parametrize("held", ["before the write", "after the write"])
async def test_a_call_returns_its_answer_after_the_event_loop_was_held(server, connection, held):
    with HandClock() as clock:
        call = asyncio.create_task(connection.call(RemotingCommand(1), soon(), attempt_seconds=3.0))
        if held == "before the write":
            await asyncio.sleep(0)
        else:
            await clock.until(lambda: server.received)
        clock.advance(3.5)
        assert not call.done()
        await clock.until(call.done)
    assert (await call).code == 0
    assert len(server.received) == 1, "sent once"


async def test_all_arrived_answers_are_read_before_a_call_expires(server, connection):
    body = bytes(1 << 20)
    server.on[1] = lambda command: make_response(command, 0, body=body)
    with HandClock() as clock:
        calls = [asyncio.create_task(connection.call(RemotingCommand(1), soon(3.0))) for _ in range(4)]
        await clock.until(lambda: len(server.received) == 4)
        await clock.until(lambda: connection._pending_requests.heard > 0)
        assert not calls[-1].done()
        clock.advance(3.5)
        await clock.until(lambda: all(call.done() for call in calls))
    assert [len((await call).body) for call in calls] == [len(body)] * 4


async def test_a_request_not_written_by_its_deadline_has_the_outcome_not_sent(server, connection):
    with HandClock() as clock:
        call = asyncio.create_task(connection.call(RemotingCommand(1), soon(2.0)))
        await asyncio.sleep(0)
        clock.advance(3.5)
        await clock.until(call.done)
        with pytest.raises(ConnectError, match="nothing was sent before the call's deadline") as failure:
            await call
        assert failure.value.outcome == "not_sent"
    await connection.call(RemotingCommand(2), soon())
    assert server.codes() == [2]


async def test_a_late_answer_is_given_to_the_on_late_callback(server, connection):
    answers, go_on = [], asyncio.Event()

    async def late(command):
        await go_on.wait()
        return make_response(command, 0, ext=command.ext)

    server.on[1] = late
    with pytest.raises(RequestTimeoutError):
        await connection.call(RemotingCommand(1, ext={"n": "1"}), soon(0.01), on_late=answers.append)
    go_on.set()
    await until(lambda: answers)
    assert [answer.ext["n"] for answer in answers] == ["1"]


def two_addresses(monkeypatch, first, second):
    """Resolve the name `two` to these addresses, in this order."""
    look_up = socket.getaddrinfo

    def found(host, port, *args, **kwargs):
        if host != "two":
            return look_up(host, port, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in (first, second)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


async def test_a_connection_falls_back_to_the_next_address_of_a_name(server, pool, monkeypatch):
    two_addresses(monkeypatch, "127.0.0.9", "127.0.0.1")
    connection = await pool.get(f"two:{server.port}", soon())
    assert (await connection.call(RemotingCommand(1), soon())).code == 0
    connection.close()
    await until(lambda: pool.peek(f"two:{server.port}") is None)

    connect, trials = asyncio.SelectorEventLoop.sock_connect, []

    async def swallow_the_first(loop, sock, place):
        trials.append(place[0])
        if place[0] == "127.0.0.9":
            await asyncio.Event().wait()
        await connect(loop, sock, place)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", swallow_the_first)
    with HandClock() as clock:
        opening = asyncio.create_task(pool.get(f"two:{server.port}", soon()))
        await clock.until(lambda: trials == ["127.0.0.9"])
        clock.advance(NEXT_ADDRESS_SECONDS)
        await clock.until(opening.done)
    assert trials == ["127.0.0.9", "127.0.0.1"]
    assert (await (await opening).call(RemotingCommand(1), soon())).code == 0


async def test_a_name_whose_addresses_all_refuse_is_an_error_with_the_reason(pool, monkeypatch):
    two_addresses(monkeypatch, "127.0.0.9", "127.0.0.8")
    server = Server()
    await server.start()
    await server.stop()
    with pytest.raises(ConnectError, match=f"^cannot connect to two:{server.port}: Connection refused$"):
        await pool.get(f"two:{server.port}", soon())


async def test_a_client_resolves_names_while_the_default_executor_is_busy(server, pool):
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as only_one:
        loop.set_default_executor(only_one)
        busy = loop.run_in_executor(None, go_on.wait)
        try:
            connection = await pool.get(f"localhost:{server.port}", soon())
            assert (await connection.call(RemotingCommand(1), soon())).code == 0
        finally:
            go_on.set()
            await busy
