"""Kill -9 loses no acknowledged message, moves no offset back, and leaves equal logs."""

from __future__ import annotations

import asyncio

from cluster_checks import status_of, stop_and_compare_logs
from kill_workload import Workload

from dledger_client.testing import LocalCluster

BEFORE = 200
AFTER = 200
LEADER_KILLS = 10


async def check(cluster: LocalCluster, load: Workload) -> None:
    await load.check()
    assert await asyncio.to_thread(stop_and_compare_logs, cluster) > 0


async def test_any_single_node_may_be_killed(cluster):
    async with Workload(cluster.namesrv) as load:
        for node_id in cluster.node_ids:
            await load.progress(BEFORE)
            await asyncio.to_thread(cluster.kill, node_id)
            await load.progress(AFTER)
            await asyncio.to_thread(cluster.restart, node_id)
            await asyncio.to_thread(cluster.wait_ready)
    await check(cluster, load)


async def test_the_leader_may_be_killed_ten_times_in_a_row(cluster):
    terms = []
    async with Workload(cluster.namesrv) as load:
        await load.progress(BEFORE)
        for _ in range(LEADER_KILLS):
            killed = await asyncio.to_thread(cluster.kill_leader)
            await load.progress(AFTER)
            leader = await asyncio.to_thread(cluster.leader)
            assert leader != killed
            terms.append((await asyncio.to_thread(status_of, cluster, leader)).term)
            await asyncio.to_thread(cluster.restart, killed)
    assert terms == sorted(set(terms)), "every leader has a term of its own"
    await check(cluster, load)


async def test_all_nodes_may_be_killed_at_once(cluster):
    async with Workload(cluster.namesrv) as load:
        await load.progress(BEFORE)
        await asyncio.gather(*(asyncio.to_thread(cluster.kill, node_id) for node_id in cluster.node_ids))
        await asyncio.gather(*(asyncio.to_thread(cluster.restart, node_id) for node_id in cluster.node_ids))
        await load.progress(AFTER)
    await check(cluster, load)
