"""One connection: pipelined requests, deadlines, errors that say whether a request may have arrived."""

from __future__ import annotations

import asyncio
import random

import pytest
from client_fakes import CLOSE, FakeServer, HandClock, until

from dledger_client import ClientClosedError, ConnectError, ConnectionLostError, RequestTimeoutError
from dledger_client.connection import ConnectionPool
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response


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


def soon(seconds: float = 60) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_answers_find_their_requests_in_any_order(server, pool):
    async def late(command):
        await asyncio.sleep(random.random() / 50)
        return make_response(command, 0, ext=command.ext)

    server.on[1] = late
    connection = await pool.get(server.address, soon())
    answers = await asyncio.gather(
        *(connection.call(RemotingCommand(1, ext={"n": str(number)}), soon()) for number in range(100))
    )
    assert [answer.ext["n"] for answer in answers] == [str(number) for number in range(100)]


async def test_each_request_has_its_own_deadline(server, pool):
    server.on[1] = lambda _: None
    connection = await pool.get(server.address, soon())
    short = asyncio.create_task(connection.call(RemotingCommand(1), soon(0.01)))
    long = asyncio.create_task(connection.call(RemotingCommand(1), soon(60)))
    with pytest.raises(RequestTimeoutError) as failure:
        await short
    assert failure.value.outcome == "unknown"
    assert connection.pending == 1
    assert (await connection.call(RemotingCommand(2), soon())).code == 0
    long.cancel()


async def test_a_lost_connection_fails_everything_under_way_and_the_next_one_is_new(server, pool):
    server.on[1] = lambda _: None
    server.on[2] = lambda _: CLOSE
    connection = await pool.get(server.address, soon())
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


async def test_who_asks_while_others_wait_does_not_get_ahead_of_them(server):
    """A commit that waits for a connection must not be overtaken by the next one."""
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


async def test_nobody_listening_is_certain_not_to_have_got_anything(pool):
    server = Server()
    await server.start()
    await server.stop()
    with pytest.raises(ConnectError, match=f"^cannot connect to {server.address}: Connection refused$") as failure:
        await pool.get(server.address, soon())
    assert failure.value.outcome == "not_sent"


@pytest.mark.parametrize(
    "address", ["names..example:9876", "x" * 64 + ":1", "a\0b:1", "localhost", ":1", "a:65536", "a:١"]
)
async def test_what_is_no_address_is_an_error_of_the_client(pool, address):
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


async def test_garbage_ends_the_connection_with_an_error_for_those_who_wait(server, pool, caplog):
    server.on[1] = lambda _: None
    connection = await pool.get(server.address, soon())
    waiting = asyncio.create_task(connection.call(RemotingCommand(1), soon()))
    await until(lambda: server.received)
    for writer in server.writers:
        writer.write(b"\xff" * 64)
    with pytest.raises(ConnectionLostError, match="protocol"):
        await waiting
    assert not caplog.records


async def test_garbage_that_nobody_waits_for_is_logged(server, pool, caplog):
    connection = await pool.get(server.address, soon())
    await connection.call(RemotingCommand(1), soon())
    for writer in server.writers:
        writer.write(b"\xff" * 64)
    await until(lambda: not connection.is_open)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert server.address in caplog.text


async def test_deadlines_can_be_brought_forward(server, pool):
    server.on[1] = lambda _: None
    connection = await pool.get(server.address, soon())
    waiting = asyncio.create_task(connection.call(RemotingCommand(1), soon(3600)))
    await until(lambda: connection.pending)
    connection.expire_pending_by(soon(0.01))
    with pytest.raises(RequestTimeoutError):
        await waiting


async def test_a_closed_pool_opens_nothing(server, pool):
    await pool.get(server.address, soon())
    await pool.close()
    with pytest.raises(ClientClosedError):
        await pool.get(server.address, soon())


async def test_what_is_written_in_one_turn_leaves_in_one_write(server, pool):
    connection = await pool.get(server.address, soon())
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


async def test_a_connection_that_no_longer_brings_anything_is_replaced(server, pool):
    server.on[1] = lambda _: None
    connection = await pool.get(server.address, soon())
    with HandClock() as clock:
        waiting = [asyncio.create_task(connection.call(RemotingCommand(1), soon(seconds))) for seconds in (1.5, 60)]
        await clock.until(lambda: connection.pending == 2)
        clock.advance(1.5)
        with pytest.raises(RequestTimeoutError):
            await waiting[0]
        again = asyncio.create_task(connection.call(RemotingCommand(1), soon(1.5)))
        await clock.until(lambda: connection.pending == 2)
        clock.advance(1.5)
        await clock.until(lambda: all(task.done() for task in (again, waiting[1])))
        with pytest.raises(RequestTimeoutError):
            await again
        with pytest.raises(ConnectionLostError, match="nothing came for 3 s"):
            await waiting[1]
    assert await pool.get(server.address, soon()) is not connection


@pytest.mark.parametrize("case", ["it brings something", "its requests are expired early", "a request had no time"])
async def test_a_connection_of_which_nothing_is_known_is_kept(server, pool, case):
    server.on[1] = lambda _: None
    connection = await pool.get(server.address, soon())
    with HandClock() as clock:
        waiting = asyncio.create_task(connection.call(RemotingCommand(1), soon(60)))
        await clock.until(lambda: connection.pending)
        clock.advance(58)
        if case == "it brings something":
            await connection.call(RemotingCommand(2), soon())
            clock.advance(2)
        elif case == "its requests are expired early":
            connection.expire_pending_by(soon(0.5))
            clock.advance(0.5)
        else:
            waiting.cancel()
            waiting = asyncio.create_task(connection.call(RemotingCommand(1), soon(0.9)))
            await clock.until(lambda: connection.pending == 1)
            clock.advance(0.9)
        with pytest.raises(RequestTimeoutError):
            await waiting
    assert await pool.get(server.address, soon()) is connection


async def test_who_writes_too_fast_waits_until_the_server_reads(server, pool):
    connection = await pool.get(server.address, soon())
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


async def test_waiting_to_write_ends_with_the_connection(server, pool):
    connection = await pool.get(server.address, soon())
    connection.pause_writing()
    waiting = asyncio.create_task(connection.writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.close()
    await waiting


async def test_the_silence_of_a_request_that_was_given_up_is_not_held_against_the_next_one(server, pool):
    server.on[1] = lambda _: None
    connection = await pool.get(server.address, soon())
    with HandClock() as clock:
        given_up = asyncio.create_task(connection.call(RemotingCommand(1), soon()))
        await clock.until(lambda: connection.pending)
        given_up.cancel()
        await asyncio.wait((given_up,))
        clock.advance(10)
        late = asyncio.create_task(connection.call(RemotingCommand(1), soon(2)))
        await clock.until(lambda: connection.pending)
        clock.advance(2)
        await clock.until(late.done)
    assert isinstance(late.exception(), RequestTimeoutError)
    assert connection.is_open
