"""A real broker and real name servers: whoever was answered finds the topic at each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest_asyncio
from broker_in_process import Client, node_config, running

from dledger_broker.node import Broker
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.records import TableLimits
from dledger_namesrv.server import NameServer

CREATE = {
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}


class Cluster:
    def __init__(self, servers: list[NameServer], broker: Broker, client: Client) -> None:
        self.servers = servers
        self.broker = broker
        self.client = client

    def shown(self, topic: str) -> list[bool]:
        """Whether each name server has a route of the topic at this very moment."""
        return [server.table.route(topic) is not None for server in self.servers]


async def introduced(broker: Broker) -> None:
    async with asyncio.timeout(20):
        while not broker.is_introduced:  # noqa: ASYNC110 -- there is no event for an answer that came
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    servers = [NameServer(NameServerConfig(port=0, data=tmp_path / f"names-{number}")) for number in range(2)]
    async with AsyncExitStack() as stack:
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        addresses = ";".join(f"127.0.0.1:{server.port}" for server in servers)
        broker = await stack.enter_async_context(
            running(node_config(tmp_path, namesrv=addresses, register_period_ms=10_000), bootstrap=True)
        )
        await introduced(broker)
        client = await Client.connect(broker.listener.port)
        stack.callback(client.close)
        yield Cluster(servers, broker, client)


async def test_what_was_created_by_a_send_or_a_request_is_found_and_what_was_deleted_is_not(cluster: Cluster) -> None:
    before = [server.counters.registrations for server in cluster.servers]
    for number in range(10):
        assert (await cluster.client.send(b"first", b=f"sent-{number}")).code == 0
        assert cluster.shown(f"sent-{number}") == [True, True]
        assert (await cluster.client.call(17, {**CREATE, "topic": f"made-{number}"})).code == 0
        assert cluster.shown(f"made-{number}") == [True, True]
        assert (await cluster.client.call(215, {"topic": f"made-{number}"})).code == 0
        assert cluster.shown(f"made-{number}") == [False, False]
    for server, count in zip(cluster.servers, before, strict=True):
        assert server.counters.requests["DLEDGER_TOPIC_CHANGES"] >= 30
        assert server.counters.registrations > count
        assert server.counters.errors == 0


async def test_a_name_server_that_stands_still_holds_up_nothing_for_ever(cluster: Cluster) -> None:
    still, alive = cluster.servers
    handle = still.handle

    async def never() -> None:
        await asyncio.Event().wait()

    still.handle = lambda request, connection: never()
    assert (await cluster.client.send(b"first", b="sent")).code == 0
    assert alive.table.route("sent") is not None
    assert still.table.route("sent") is None
    still.handle = handle
    async with asyncio.timeout(20):
        while still.table.route("sent") is None:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0.01)
    assert (await cluster.client.send(b"first", b="sent-again")).code == 0
    assert cluster.shown("sent-again") == [True, True]


async def test_a_name_server_that_is_gone_is_not_waited_for(cluster: Cluster) -> None:
    await cluster.servers[0].stop()
    for number in range(3):
        assert (await cluster.client.send(b"first", b=f"sent-{number}")).code == 0
        assert cluster.servers[1].table.route(f"sent-{number}") is not None


async def test_a_name_server_that_is_full_keeps_the_leader_and_is_named_until_there_is_room(cluster: Cluster) -> None:
    full, other = cluster.servers
    assert (await cluster.client.send(b"first", b="sent")).code == 0
    full.table._limits = TableLimits(max_routes=full.table.route_count)
    answer = await cluster.client.call(17, {**CREATE, "topic": "one-too-many"})
    assert (answer.code, f"not shown yet by name server 127.0.0.1:{full.port}" in (answer.remark or "")) == (0, True)
    assert cluster.shown("one-too-many") == [False, True]
    assert cluster.broker.counter.changes_untold == 1
    async with asyncio.timeout(20):
        while full.counters.limits["max_routes"] < 2:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0.01)
    assert full.table.members("broker-a") == other.table.members("broker-a"), "the leader is still listed"
    assert cluster.shown("sent") == [True, True]
    assert (await cluster.client.call(215, {"topic": "sent"})).code == 0
    async with asyncio.timeout(20):
        while cluster.shown("one-too-many") != [True, True]:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0.01)
    answer = await cluster.client.call(17, {**CREATE, "topic": "one-too-many", "perm": "4"})
    assert (answer.code, answer.remark) == (0, None)
