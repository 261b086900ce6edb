"""Two broker groups with two name servers. One name server is down at the start, and the other dies later.

A change that was answered is visible at once at each running name server.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from commands import Bodies, until

from dledger.testing.ports import free_ports
from dledger_client import Admin, Producer, PushConsumer
from dledger_client.testing import LocalCluster
from dledger_client.testing.ports import NAMESRV_OFFSET, find_base_port
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.server import NameServer
from dledger_remoting.codes import RequestCode
from dledger_remoting.route import TopicRouteData, decode_route
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.cluster_checks import eventually
from tests.integration.bare_client import BareClient

GROUPS = {"broker-a", "broker-b"}
SECOND = {
    "topic": "SECOND",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "topicFilterType": "SINGLE_TAG",
}


def route(name_server: str, topic: str) -> TopicRouteData | None:
    """Return the present route of a topic at a name server."""
    with BareClient(name_server) as client:
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
    return decode_route(answer.body) if answer.code == 0 else None


async def shows(name_server: str, topic: str) -> bool:
    """Return whether a name server has a topic in both groups."""
    with suppress(OSError):
        found = await asyncio.to_thread(route, name_server, topic)
        return found is not None and {queue.broker_name for queue in found.queue_datas} == GROUPS
    return False


@asynccontextmanager
async def name_server(address: str, data: Path) -> AsyncIterator[NameServer]:
    """Run a name server in the process of the test."""
    server = NameServer(NameServerConfig(port=int(address.rpartition(":")[2]), data=data))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def permissions(name_server: str, topic: str) -> list[int]:
    """Return the present permission of a topic in each group at a name server."""
    found = await asyncio.to_thread(route, name_server, topic)
    return [] if found is None else [queue.perm for queue in found.queue_datas]


@asynccontextmanager
async def reading(name_servers: str, topic: str) -> AsyncIterator[Bodies]:
    """Run a consumer of a topic, and yield the bodies that it has seen."""
    seen = Bodies()
    async with PushConsumer(name_servers, f"readers-of-{topic}", topic, seen, start_from="first"):
        yield seen


async def flows(producer: Producer, topic: str, seen: Bodies) -> None:
    """Send to both groups, and wait until the consumer has seen everything."""
    bodies = {f"{len(seen)} {number}".encode() for number in range(16)}
    for body in sorted(bodies):
        await producer.send(topic, body)
    await until(lambda: {*seen} >= bodies, 90.0)


async def change(cluster: LocalCluster, code: int, ext: dict[str, str], body: bytes = b"") -> str:
    """Let every group make a change, through a follower, which forwards it.

    Return the remarks about name servers that do not show the change yet, which happens on a busy machine.
    """
    remarks = ""
    for group in sorted(GROUPS):
        with BareClient(cluster.client_address(f"{group}-n1")) as client:
            answer = await asyncio.to_thread(client.ask, code, ext, body)
        assert answer.code == 0, answer.remark
        remarks += answer.remark or ""
    return remarks


async def is_shown(change_told: str, topic: str, perm: int, addresses: Sequence[str]) -> None:
    """Check that name servers show a permission in both groups.

    They must show it at once, unless an answer has said that it takes time.
    """

    async def shown() -> bool:
        return [await permissions(address, topic) for address in addresses] == [[perm, perm]] * len(addresses)

    if change_told:
        await eventually(60.0, f"shown: {topic}", shown)
    assert await shown(), f"{topic} with permission {perm}"


async def test_everything_flows_without_one_of_two_name_servers(tmp_path: Path) -> None:
    base_port = find_base_port(2, 3)
    (port,) = free_ports(1)
    early, late = f"127.0.0.1:{base_port + NAMESRV_OFFSET}", f"127.0.0.1:{port}"
    both = f"{late};{early}"
    cluster = LocalCluster(groups=2, config=f'namesrv = ["{early}", "{late}"]\n')
    cluster._base_port = base_port
    async with cluster, Admin(both) as admin, Producer(both, timeout=60) as producer:
        await admin.create_topic("FIRST", queues=4)
        await admin.create_group(SubscriptionGroupConfig("readers"))
        for topic in ("FIRST", "%RETRY%readers"):
            await eventually(60.0, f"shown by the early name server: {topic}", partial(shows, early, topic))
        async with reading(both, "FIRST") as first:
            await flows(producer, "FIRST", first)
            async with name_server(late, tmp_path) as late_server:
                for topic in ("FIRST", "%RETRY%readers"):
                    await eventually(60.0, f"shown by the late name server: {topic}", partial(shows, late, topic))
                servers = (early, late)
                for perm in (6, 4, 6):
                    told = await change(cluster, RequestCode.UPDATE_AND_CREATE_TOPIC, SECOND | {"perm": str(perm)})
                    await is_shown(told, "SECOND", perm, servers)
                put_group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP
                told = await change(cluster, put_group, {}, b'{"groupName":"others"}')
                await is_shown(told, "%RETRY%others", 6, servers)
                await until(lambda: late_server.table.node_count == len(cluster.node_ids), 60.0)
                os.kill(cluster.pid("namesrv") or 0, signal.SIGKILL)
                await asyncio.to_thread(cluster.kill_leader, "broker-a")
                await admin.create_topic("THIRD", queues=4)
                await eventually(60.0, "shown by the late name server: THIRD", partial(shows, late, "THIRD"))
                await flows(producer, "FIRST", first)
                async with reading(both, "THIRD") as third:
                    await flows(producer, "THIRD", third)
