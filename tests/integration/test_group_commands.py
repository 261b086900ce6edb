"""`dledger group` and `dledger consume --sql` against a cluster of real processes, while consumers run."""

from __future__ import annotations

import asyncio
import json

import pytest
from commands import Bodies, output, until

from dledger_client import Admin, MessageQueue, Producer, PushConsumer
from dledger_client.testing import LocalCluster, local_cluster_fixture

pytestmark = pytest.mark.long

cluster = local_cluster_fixture(scope="module")


async def dledger(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """Run the command to its end in a thread, and return its output."""
    return await asyncio.to_thread(output, *words, code=code, DLEDGER_NAMESRV=cluster.namesrv)


async def send(cluster: LocalCluster, topic: str, *numbers: int) -> None:
    """Send numbers to both queues in turn, as bodies and as property `number`."""
    async with Producer(cluster.namesrv) as producer:
        for number in numbers:
            queue = MessageQueue(topic, "broker-a", number % 2)
            await producer.send(topic, b"%d" % number, queue=queue, properties={"number": str(number)})


class Member:
    """Member of a group, with the bodies that it has seen."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str) -> None:
        self.seen = Bodies()
        self.consumer = PushConsumer(cluster.namesrv, group, topic, self.seen, start_from="first")

    async def has_seen(self, *numbers: int) -> None:
        await until(lambda: sorted(map(int, self.seen)) == sorted(numbers))


async def test_a_paused_group_gets_no_messages_until_resumed(cluster: LocalCluster, topic: str) -> None:
    await send(cluster, topic, *range(4))
    paused, other = Member(cluster, "paused", topic), Member(cluster, "other", topic)
    async with paused.consumer, other.consumer:
        await paused.has_seen(*range(4))
        await other.has_seen(*range(4))
        await paused.consumer.commit()
        assert "paused paused" in await dledger(cluster, "group", "pause", "paused")
        await send(cluster, topic, *range(4, 12))
        await other.has_seen(*range(12))
        shown = json.loads(await dledger(cluster, "group", "describe", "paused", "--topic", topic, "-o", "json"))
        assert (sorted(map(int, paused.seen)), shown["state"], shown["lag"]) == (list(range(4)), "stable", 8)
        assert len(shown["members"]) == 1
        assert "paused resumed" in await dledger(cluster, "group", "resume", "paused")
        await paused.has_seen(*range(12))


async def test_only_groups_that_are_there_are_cloned_and_paused(cluster: LocalCluster, topic: str) -> None:
    for words in (("clone", "absent", "target"), ("pause", "absent"), ("resume", "absent")):
        assert "there is no consumer group 'absent'" in await dledger(cluster, "group", *words, code=1)
    async with Admin(cluster.namesrv) as admin:
        assert "absent" not in await admin.groups()


async def test_consume_prints_messages_that_match_a_sql_expression(cluster: LocalCluster, topic: str) -> None:
    await send(cluster, topic, *range(10))
    read = ("consume", "--topic", topic, "--from", "beginning")
    found = await dledger(cluster, *read, "--to", "end", "--sql", "number BETWEEN 3 AND 7 AND number <> 5")
    assert sorted(map(int, found.split())) == [3, 4, 6, 7]
    assert await dledger(cluster, *read, "--to", "end", "--sql", "absent > 1") == ""
    group = ("consume", "--topic", topic, "--group", "in-sql", "--from", "beginning", "-n", "2")
    found = await dledger(cluster, *group, "--sql", "number > 7")
    assert sorted(map(int, found.split())) == [8, 9]
