"""A real broker and real name servers: a client that was answered finds the topic at each name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest_asyncio
from broker_in_process import Client, node_config, running, until

from dledger_broker.node import Broker
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.records import TableLimits
from dledger_namesrv.server import NameServer
from dledger_remoting.command import RemotingCommand


class Cluster:
    def __init__(self, servers: list[NameServer], broker: Broker, client: Client) -> None:
        self.servers = servers
        self.broker = broker
        self.client = client

    def shown(self, topic: str) -> list[bool]:
        """Return, for each name server, whether it has a route of the topic at this moment."""
        return [server.table.route(topic) is not None for server in self.servers]

    async def send(self, topic: str) -> None:
        assert (await self.client.send(b"first", b=topic)).code == 0

    async def create(self, topic: str, perm: str = "6") -> RemotingCommand:
        answer = await self.client.create_topic(topic, perm=perm)
        assert answer.code == 0
        return answer

    async def delete(self, topic: str) -> None:
        assert (await self.client.call(215, {"topic": topic})).code == 0


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
        await until(lambda: broker.is_introduced)
        client = await Client.connect(broker.listener.port)
        stack.callback(client.close)
        yield Cluster(servers, broker, client)


async def test_an_answered_creation_or_deletion_is_visible_on_every_name_server(cluster: Cluster) -> None:
    before = [server.counters.registrations for server in cluster.servers]
    for number in range(10):
        await cluster.send(f"sent-{number}")
        assert cluster.shown(f"sent-{number}") == [True, True]
        await cluster.create(f"made-{number}")
        assert cluster.shown(f"made-{number}") == [True, True]
        await cluster.delete(f"made-{number}")
        assert cluster.shown(f"made-{number}") == [False, False]
    for server, count in zip(cluster.servers, before, strict=True):
        assert server.counters.requests["DLEDGER_TOPIC_CHANGES"] >= 30
        assert server.counters.registrations > count
        assert server.counters.errors == 0


async def test_a_hanging_name_server_delays_answers_only_for_a_limited_time(cluster: Cluster) -> None:
    still = cluster.servers[0]
    handle = still.handle

    async def never() -> None:
        await asyncio.Event().wait()

    still.handle = lambda request, connection: never()
    await cluster.send("sent")
    assert cluster.shown("sent") == [False, True]
    still.handle = handle
    await until(lambda: cluster.shown("sent") == [True, True])
    await cluster.send("sent-again")
    assert cluster.shown("sent-again") == [True, True]


async def test_a_name_server_that_is_gone_is_not_waited_for(cluster: Cluster) -> None:
    await cluster.servers[0].stop()
    for number in range(3):
        await cluster.send(f"sent-{number}")
        assert cluster.servers[1].table.route(f"sent-{number}") is not None


async def test_a_full_name_server_keeps_the_leader_and_is_named_until_there_is_room(cluster: Cluster) -> None:
    full, other = cluster.servers
    await cluster.send("sent")
    full.table._limits = TableLimits(max_routes=full.table.route_count)
    answer = await cluster.create("one-too-many")
    assert f"not shown yet by name server 127.0.0.1:{full.port}" in (answer.remark or "")
    assert cluster.shown("one-too-many") == [False, True]
    assert cluster.broker.counter.changes_untold == 1
    await until(lambda: full.counters.limits["max_routes"] >= 2)
    assert full.table.members("broker-a") == other.table.members("broker-a"), "the leader is still listed"
    assert cluster.shown("sent") == [True, True]
    await cluster.delete("sent")
    await until(lambda: cluster.shown("one-too-many") == [True, True])
    assert (await cluster.create("one-too-many", perm="4")).remark is None
