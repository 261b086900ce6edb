"""A node that lost parts of its directory comes back."""

from __future__ import annotations

import asyncio
import json
import shutil

from bare_client import broker_log
from cluster_checks import bodies_of, dledger, eventually, read_topic, stop_and_compare_logs
from kill_workload import TOPIC, Workload

from dledger_client import Admin, Producer
from dledger_client.testing import LocalCluster

VIEWS = ("consumequeue", "keyindex")
MESSAGES = 300
PROMOTION_SECONDS = 60.0
VIEWS_SECONDS = 30.0
"""Time limit in seconds: the key index follows the log at its own pace."""


async def told(cluster: LocalCluster, field: str) -> dict[str, object]:
    """Return a status field of each node that answers, also while the group has no leader (exit code 3)."""
    words = ("status", "--data", str(cluster.data_dir), "-o", "json")
    said = json.loads(await asyncio.to_thread(dledger, *words, codes=(0, 3)))
    return {process["name"]: process["status"][field] for process in said["processes"] if process["status"]}


async def told_by_all(cluster: LocalCluster, field: str) -> dict[str, object]:
    """Return the same once every node answers: a status request waits at most a second."""
    found: dict[str, object] = {}

    async def all_tell() -> bool:
        found.update(await told(cluster, field))
        return found.keys() == set(cluster.node_ids)

    await eventually(PROMOTION_SECONDS, "told by all nodes", all_tell)
    return found


async def test_a_wiped_directory_comes_back_as_a_learner_and_votes_after_promotion(cluster):
    async with Workload(cluster.namesrv) as load:
        await load.progress(MESSAGES)
        before = await told_by_all(cluster, "incarnation")
        victim = await asyncio.to_thread(cluster.kill_leader)
        shutil.rmtree(cluster.data_dir / victim)
        await asyncio.to_thread(cluster.restart, victim)
        await load.progress(MESSAGES)

        async def promoted() -> bool:
            return list((await told(cluster, "voter")).values()) == [True] * len(cluster.node_ids)

        await eventually(PROMOTION_SECONDS, "promoted", promoted)
        incarnation = (await told_by_all(cluster, "incarnation"))[victim]
        assert incarnation != before[victim]
        others = [node_id for node_id in cluster.node_ids if node_id != victim]
        came = f"event=learner_promoted member={victim} incarnation={incarnation} "
        assert any(came in broker_log(cluster, node_id) for node_id in others)
        await asyncio.to_thread(cluster.kill, others[0])
        await load.progress(MESSAGES)  # the node's vote counts now, since one of the founders is gone
        await asyncio.to_thread(cluster.restart, others[0])
    await load.check()
    assert await asyncio.to_thread(stop_and_compare_logs, cluster) > 0


async def test_deleted_views_are_rebuilt_from_the_log(cluster):
    async with Producer(cluster.namesrv) as producer:
        for number in range(MESSAGES):
            await producer.send(TOPIC, b"%d" % number, key=f"key-{number}", ordering_key="one")
    before = await read_topic(cluster.namesrv, TOPIC)

    async def are_there() -> bool:
        return all((cluster.data_dir / node_id / view).is_dir() for node_id in cluster.node_ids for view in VIEWS)

    await eventually(VIEWS_SECONDS, "every node has files of its views", are_there)
    for node_id in cluster.node_ids:
        await asyncio.to_thread(cluster.kill, node_id)
        for view in VIEWS:
            shutil.rmtree(cluster.data_dir / node_id / view)
    await asyncio.gather(*(asyncio.to_thread(cluster.restart, node_id) for node_id in cluster.node_ids))
    await asyncio.to_thread(cluster.wait_ready)
    after = await read_topic(cluster.namesrv, TOPIC)
    assert bodies_of(after) == bodies_of(before)
    # A send that was repeated because of a slow disk may be stored twice.
    assert list(dict.fromkeys(bodies_of(after))) == [str(number) for number in range(MESSAGES)]
    async with Admin(cluster.namesrv) as admin:
        for number in (0, MESSAGES // 2, MESSAGES - 1):
            found = await admin.messages_by_key(TOPIC, f"key-{number}")
            assert set(bodies_of(found)) == {str(number)}
        by_id = await admin.message_by_id(before[7].offset_message_id)
    assert by_id.body == before[7].body
    assert await asyncio.to_thread(stop_and_compare_logs, cluster) > 0
