"""An error distinguishes an address with a foreign server from one where nobody answers, and names that server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from client_fakes import HandClock, fake_cluster

from dledger_client import (
    Admin,
    NoNameServerError,
    Producer,
    PushConsumer,
    SendError,
    SilentServerError,
    WrongServerError,
)
from dledger_client.cluster import nameservers
from dledger_client.cluster.nameservers import _ATTEMPT_DELAY_SECONDS, FIRST_ANSWER_SECONDS, NameServers
from dledger_client.cluster.pool import ConnectionPool
from dledger_remoting.codes import RequestCode

HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"
ALERT = bytes.fromhex("15030300020246")
OTHER = b"-ERR unknown command\r\n"
GREETING = bytes.fromhex("000000280100002492 01c420") + bytes(32)


@asynccontextmanager
async def listening(serve):
    """Run a server, and yield its address."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


@asynccontextmanager
async def answering(first: bytes, *, speaks_first: bool = False):
    async def serve(reader, writer):
        if not speaks_first:
            await reader.read(1)
        writer.write(first)
        await reader.read()
        writer.close()

    async with listening(serve) as address:
        yield address


@pytest.mark.parametrize("speaks_first", [False, True])
@pytest.mark.parametrize(
    ("first", "named"),
    [
        (HTTP, "an HTTP server"),
        (ALERT, "a TLS server"),
        (GREETING, "the peer port of a node"),
        (OTHER, "a server of another protocol"),
    ],
)
async def test_a_wrong_server_is_named_at_once(first, named, speaks_first, caplog):
    async with answering(first, speaks_first=speaks_first) as address, asyncio.timeout(5):
        consumer = PushConsumer(address, "CG", "T")
        with pytest.raises(WrongServerError, match=f"^{address} is no name server and no broker: {named}"):
            await consumer.start()
        async with Admin(address) as admin:
            with pytest.raises(WrongServerError, match=named) as failure:
                await admin.topics()
        assert (failure.value.outcome, failure.value.retryable) == ("not_sent", False)
    if first is not OTHER:
        assert not [record for record in caplog.records if record.levelname != "DEBUG"], "who asks is told, once"


async def test_a_consumer_start_without_a_name_server_fails_and_leaves_no_task(cluster):
    await cluster.name_server.stop()
    before = asyncio.all_tasks()
    consumer = PushConsumer(cluster.namesrv, "CG", "T", start_timeout=0.05)
    with pytest.raises(NoNameServerError):
        await consumer.start()
    assert asyncio.all_tasks() <= before


@asynccontextmanager
async def silent(*, last_words: bytes = b""):
    """Run a server that reads to the end without an answer, and then sends `last_words`.

    Yield its address and the bytes that it has read.
    """
    got = bytearray()

    async def serve(reader, writer):
        while data := await reader.read(1000):
            got.extend(data)
        writer.write(last_words)
        if last_words:
            writer.close()

    async with listening(serve) as address:
        yield address, got


async def started_against(silent_server, clock, work):
    """Start `work`, and return its task once its request has reached a server that says nothing."""
    _, got = silent_server
    task = asyncio.create_task(work)
    await clock.until(lambda: got)
    return task


async def test_a_port_that_takes_connections_and_says_nothing_fails_before_two_seconds_are_over():
    assert FIRST_ANSWER_SECONDS < 2
    async with silent() as server:
        address = server[0]
        with HandClock() as clock:
            consumer = PushConsumer(address, "CG", "T")
            task = await started_against(server, clock, consumer.start())
            clock.advance(FIRST_ANSWER_SECONDS - 0.01)
            await asyncio.sleep(0)
            assert not task.done()
            clock.advance(0.02)
            await clock.until(task.done)
            with pytest.raises(SilentServerError, match=f"^{address} takes connections and says nothing: no") as it:
                task.result()
        assert (it.value.outcome, it.value.retryable) == ("not_sent", True)


async def test_a_send_with_only_a_silent_name_server_fails_as_not_sent():
    async with silent() as server, Producer(server[0]) as producer:
        with HandClock() as clock:
            task = await started_against(server, clock, producer.send("T", b"x"))
            clock.advance(FIRST_ANSWER_SECONDS)
            await clock.until(task.done)
        with pytest.raises(SendError, match="takes connections and says nothing") as failure:
            task.result()
        assert failure.value.outcome == "not_sent"


async def test_a_wrong_server_that_waits_for_a_line_end_is_named():
    async with silent(last_words=HTTP) as server, Admin(server[0]) as admin:
        with HandClock() as clock:
            task = await started_against(server, clock, admin.topics())
            clock.advance(FIRST_ANSWER_SECONDS - 0.1)
            await clock.until(task.done)
        with pytest.raises(WrongServerError, match="an HTTP server answered there"):
            task.result()


async def test_several_silent_name_servers_fail_before_two_seconds_are_over():
    assert FIRST_ANSWER_SECONDS + 2 * _ATTEMPT_DELAY_SECONDS < 2
    async with silent() as one, silent() as two, silent() as three:
        with HandClock() as clock:
            consumer = PushConsumer(";".join(server[0] for server in (one, two, three)), "CG", "T")
            began = asyncio.get_running_loop().time()
            task = await started_against(one, clock, consumer.start())
            for server in (two, three):
                assert not server[1]
                clock.advance(_ATTEMPT_DELAY_SECONDS)
                await clock.until(lambda: server[1])  # noqa: B023
            clock.advance(began + FIRST_ANSWER_SECONDS + 2 * _ATTEMPT_DELAY_SECONDS - asyncio.get_running_loop().time())
            await clock.until(task.done)
            with pytest.raises(SilentServerError, match="takes connections and says nothing"):
                task.result()


async def test_clients_skip_a_silent_name_server_after_the_first_attempt():
    async with silent() as server, fake_cluster() as cluster, Admin([server[0], cluster.namesrv]) as admin:
        with HandClock() as clock:
            task = await started_against(server, clock, admin.topics())
            clock.advance(_ATTEMPT_DELAY_SECONDS)
            await clock.until(task.done)
            assert "T" in task.result()
            asked = len(server[1])
            task = asyncio.create_task(admin.topics())
            await clock.until(task.done)
            assert len(server[1]) == asked


async def test_a_name_server_that_has_answered_before_is_waited_for(cluster, admin):
    await admin.topics()
    for writer in cluster.name_server.writers:
        writer.transport.abort()
    asked = []
    cluster.name_server.on[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = asked.append
    with HandClock() as clock:
        task = asyncio.create_task(admin.topics())
        await clock.until(lambda: asked or clock.advance(0.01))
        for _ in range(4):
            clock.advance(FIRST_ANSWER_SECONDS)
            await asyncio.sleep(0)
            assert not task.done()
        cluster.name_server.on.clear()
        await clock.until(lambda: task.done() or clock.advance(0.01))
    assert "T" in task.result()


@asynccontextmanager
async def closing(times: int | None = None, *, cluster=None):
    """Run a server that closes all or the first `times` connections after a request. A cluster gets the rest."""
    closed = []

    async def serve(reader, writer):
        first = await reader.read(1000)
        if times is None or len(closed) < times:
            closed.append(first)
            (writer.transport.abort if len(closed) % 2 else writer.close)()
            return
        host, _, port = cluster.namesrv.rpartition(":")
        behind_reader, behind = await asyncio.open_connection(host, int(port))
        behind.write(first)
        while answer := await behind_reader.read(1000):
            writer.write(answer)

    async with listening(serve) as address:
        yield address, closed


async def test_a_server_that_closes_silently_is_reported_as_a_possible_tls_port(monkeypatch):
    monkeypatch.setattr(nameservers, "FIRST_ANSWER_SECONDS", 0.5)
    async with closing() as (address, closed), Admin(address) as admin, asyncio.timeout(5):
        with pytest.raises(SilentServerError, match=f"^{address} says nothing, and closes .* as a TLS port does") as it:
            await admin.topics()
        assert len(closed) > 1
        assert (it.value.outcome, it.value.retryable) == ("not_sent", True)
        consumer = PushConsumer(address, "CG", "T")
        with pytest.raises(SilentServerError, match="as a TLS port does"):
            await consumer.start()


async def test_a_name_server_that_closes_its_first_connections_is_waited_for(cluster):
    async with closing(2, cluster=cluster) as (address, closed):
        async with Admin(address) as admin:
            assert "T" in await admin.topics()
        assert len(closed) == 2


async def test_a_broker_at_the_address_of_a_name_server_is_named_by_every_call(cluster):
    broker = cluster.group.nodes[0].address
    async with Admin(broker) as admin, Producer(broker) as producer:
        with pytest.raises(WrongServerError, match="is no name server: a broker answered there"):
            await admin.topics()
        with pytest.raises(SendError, match="is no name server: a broker answered there") as failure:
            await producer.send("T", b"x")
        assert failure.value.outcome == "not_sent"
    async with Admin([broker, cluster.namesrv]) as admin:
        assert "T" in await admin.topics()


async def test_a_name_server_check_succeeds_although_the_event_loop_was_held(cluster):
    pool = ConnectionPool(lambda *_: None)
    with HandClock() as clock:
        task = asyncio.create_task(NameServers((cluster.namesrv,), pool).check(loop_time() + 60))
        await clock.until(lambda: any(link.pending for link in pool.connections()))
        clock.advance(FIRST_ANSWER_SECONDS * 2)
        await clock.until(task.done)
    await task
    await pool.close()


def loop_time() -> float:
    return asyncio.get_running_loop().time()
