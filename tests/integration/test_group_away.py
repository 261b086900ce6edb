"""All nodes of one of two broker groups are killed and started again. Work for its queues waits for it."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from cluster_checks import eventually
from commands import run

from dledger_client import Admin, Producer
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_spark.errors import SourceError
from dledger_spark.filters import PushedFilters
from dledger_spark.options import read_options
from dledger_spark.planning import BatchPlanner

pytestmark = pytest.mark.long

GROUP, NODE = "broker-b", "broker-b-n0"


cluster = local_cluster_fixture(groups=2, nodes=1)


async def kill(cluster: LocalCluster, admin: Admin) -> None:
    """Kill the only node of a group, and wait until name servers miss it."""
    await asyncio.to_thread(cluster.kill, NODE)

    async def is_missed() -> bool:
        return not (await admin.broker_groups())[GROUP].broker_addrs

    await eventually(30, "missed", is_missed)


async def dledger(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *arguments, "--namesrv", cluster.namesrv)


async def test_keys_keep_their_queues_and_nothing_is_done_by_halves(cluster):
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, timeout=60, idempotent=True) as producer:
        await admin.create_topic("T", queues=4)
        keys = [f"key-{number}" for number in range(64)]
        ordered = {key: await producer.send("T", b"1", ordering_key=key) for key in keys}
        unique = {key: await producer.send("T", b"u", unique_key=key) for key in keys}
        assert {result.broker_group for result in ordered.values()} == {"broker-a", GROUP}
        await kill(cluster, admin)
        later = {key: asyncio.create_task(producer.send("T", b"2", ordering_key=key)) for key in keys}
        async with Producer(cluster.namesrv, timeout=60, idempotent=True) as newcomer:
            again = {key: asyncio.create_task(newcomer.send("T", b"u", unique_key=key)) for key in keys}
            for result in (ordered, unique):
                sends = later if result is ordered else again
                for key in keys:
                    if result[key].broker_group == "broker-a":
                        await sends[key]

            refused = await dledger(cluster, "topic", "delete", "T", "--yes")
            assert (refused.returncode, f"no node of broker group {GROUP} is registered" in refused.stderr) == (1, True)
            options = read_options(
                {"namesrv": cluster.namesrv, "subscribe": "T", "readFrom": "any", "readTimeout": "1s"}, "batch"
            )
            with pytest.raises(SourceError, match=GROUP):
                await asyncio.to_thread(BatchPlanner(options, PushedFilters()).partitions)

            assert not any(later[key].done() for key in keys if ordered[key].broker_group == GROUP)
            await asyncio.to_thread(cluster.restart, NODE)
            for key in keys:
                moved, stored = await later[key], await again[key]
                assert (moved.broker_group, moved.queue_id) == (ordered[key].broker_group, ordered[key].queue_id)
                assert (stored.broker_group, stored.queue_offset) == (
                    unique[key].broker_group,
                    unique[key].queue_offset,
                )


async def test_a_group_that_has_come_back_gets_its_share_of_sends_again(cluster):
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, timeout=60) as producer:
        await admin.create_topic("Shared", queues=2)
        assert {(await producer.send("Shared", b"1")).broker_group for _ in range(4)} == {"broker-a", GROUP}
        await kill(cluster, admin)
        assert {(await producer.send("Shared", b"2")).broker_group for _ in range(4)} == {"broker-a"}
        await asyncio.to_thread(cluster.restart, NODE)

        async def is_sent_to() -> bool:
            return (await producer.send("Shared", b"3")).broker_group == GROUP

        await eventually(30, "sent to", is_sent_to)
        assert {(await producer.send("Shared", b"4")).broker_group for _ in range(4)} == {"broker-a", GROUP}


async def test_a_group_that_is_gone_for_good_is_forgotten(cluster):
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("F", queues=1)
        await kill(cluster, admin)
        assert (await dledger(cluster, "cluster", "forget", GROUP, "--yes")).stdout == f"{GROUP} forgotten\n"
        assert list(await admin.broker_groups()) == ["broker-a"]
        await admin.delete_topic("F")
        await asyncio.to_thread(cluster.restart, NODE)
