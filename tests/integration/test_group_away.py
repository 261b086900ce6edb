"""All nodes of one of two broker groups are killed and started again: what belongs to its queues waits for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from dledger_client import Admin, Producer
from dledger_client.testing import LocalCluster
from dledger_spark.errors import SourceError
from dledger_spark.filters import PushedFilters
from dledger_spark.options import read_options
from dledger_spark.planning import BatchPlanner

GROUP, NODE = "broker-b", "broker-b-n0"


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(groups=2, nodes=1) as started:
        yield started


async def away(admin: Admin) -> None:
    async with asyncio.timeout(30):
        while (await admin.broker_groups())[GROUP].broker_addrs:  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0.05)


async def dledger(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dledger_admin", *arguments, "--namesrv", cluster.namesrv]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)


async def test_keys_keep_their_queues_and_nothing_is_done_by_halves(cluster):
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, timeout=60, idempotent=True) as producer:
        await admin.create_topic("T", queues=4)
        keys = [f"key-{number}" for number in range(64)]
        ordered = {key: await producer.send("T", b"1", ordering_key=key) for key in keys}
        unique = {key: await producer.send("T", b"u", unique_key=key) for key in keys}
        assert {result.broker_group for result in ordered.values()} == {"broker-a", GROUP}
        await asyncio.to_thread(cluster.kill, NODE)
        await away(admin)
        later = {key: asyncio.create_task(producer.send("T", b"2", ordering_key=key)) for key in keys}
        async with Producer(cluster.namesrv, timeout=60, idempotent=True) as newcomer:
            again = {key: asyncio.create_task(newcomer.send("T", b"u", unique_key=key)) for key in keys}
            for result in (ordered, unique):
                sends = later if result is ordered else again
                for key in keys:
                    if result[key].broker_group == "broker-a":
                        await sends[key]

            refused = await dledger(cluster, "topic", "delete", "T")
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
        await asyncio.to_thread(cluster.kill, NODE)
        await away(admin)
        assert {(await producer.send("Shared", b"2")).broker_group for _ in range(4)} == {"broker-a"}
        await asyncio.to_thread(cluster.restart, NODE)
        async with asyncio.timeout(30):
            while (await producer.send("Shared", b"3")).broker_group != GROUP:  # noqa: ASYNC110 -- nothing tells of it
                await asyncio.sleep(0.05)
        assert {(await producer.send("Shared", b"4")).broker_group for _ in range(4)} == {"broker-a", GROUP}


async def test_a_group_that_is_gone_for_good_is_forgotten(cluster):
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("F", queues=1)
        await asyncio.to_thread(cluster.kill, NODE)
        await away(admin)
        assert (await dledger(cluster, "cluster", "forget", GROUP)).stdout == f"{GROUP} forgotten\n"
        assert list(await admin.broker_groups()) == ["broker-a"]
        await admin.delete_topic("F")
        await asyncio.to_thread(cluster.restart, NODE)
