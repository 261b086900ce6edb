"""An address where something else answers is told apart from one where nobody does, and what answers is named."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from client_fakes import fake_cluster

from dledger_client import Admin, NoNameServerError, PushConsumer, WrongServerError

HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"
ALERT = bytes.fromhex("15030300020246")
GREETING = bytes.fromhex("000000280100002492 01c420") + bytes(32)


@asynccontextmanager
async def answering(first: bytes, *, speaks_first: bool = False):
    async def serve(reader, writer):
        if not speaks_first:
            await reader.read(1)
        writer.write(first)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


@pytest.mark.parametrize("speaks_first", [False, True])
@pytest.mark.parametrize(
    ("first", "named"), [(HTTP, "an HTTP server"), (ALERT, "a TLS server"), (GREETING, "the peer port of a node")]
)
async def test_what_answers_instead_of_a_name_server_is_named_at_once(first, named, speaks_first, caplog):
    async with answering(first, speaks_first=speaks_first) as address, asyncio.timeout(5):
        consumer = PushConsumer(address, "CG", "T")
        with pytest.raises(WrongServerError, match=f"^{address} is no name server and no broker: {named}"):
            await consumer.start()
        async with Admin(address) as admin:
            with pytest.raises(WrongServerError, match=named) as failure:
                await admin.topics()
        assert (failure.value.outcome, failure.value.retryable) == ("not_sent", False)
    assert not [record for record in caplog.records if record.levelname != "DEBUG"], "who asks is told, once"


async def test_one_wrong_name_server_of_two_is_passed_over():
    async with answering(HTTP) as address, fake_cluster() as cluster:
        async with Admin([address, cluster.namesrv]) as admin:
            assert "T" in await admin.topics()


async def test_a_consumer_whose_name_server_is_a_broker_does_not_start():
    async with fake_cluster() as cluster:
        consumer = PushConsumer(cluster.group.nodes[0].address, "CG", "T")
        with pytest.raises(WrongServerError, match="is no name server: a broker answered there"):
            await consumer.start()


async def test_a_consumer_without_a_name_server_fails_within_its_deadline_and_leaves_nothing_running():
    async with fake_cluster() as cluster:
        address = cluster.namesrv
    before = asyncio.all_tasks()
    consumer = PushConsumer(address, "CG", "T", start_timeout=0.05)
    with pytest.raises(NoNameServerError):
        await consumer.start()
    assert asyncio.all_tasks() <= before
