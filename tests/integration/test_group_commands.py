"""`dledger group` and `dledger consume --sql` against a cluster of real processes, while consumers run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from dledger_client import Admin, MessageQueue, Producer, PushConsumer, ReceivedMessage, SubscriptionGroupConfig
from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture(scope="module")
WITHIN_S = 40.0


async def dledger(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """Run the command to its end, beside what runs here; returns what it said."""
    told = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "dledger_admin", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "DLEDGER_NAMESRV": cluster.namesrv},
    )
    assert told.returncode == code, told.stderr
    return str(told.stderr if code else told.stdout)


@pytest.fixture
async def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with two queues."""
    name = str(request.node.originalname).removeprefix("test_")[:100]
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(name, queues=2)
    return name


async def send(cluster: LocalCluster, topic: str, *numbers: int) -> None:
    """Send numbers to both queues by turns; their property `number` says the same."""
    async with Producer(cluster.namesrv) as producer:
        for number in numbers:
            queue = MessageQueue(topic, "broker-a", number % 2)
            await producer.send(topic, b"%d" % number, queue=queue, properties={"number": str(number)})


class Member:
    """A member of a group, which keeps the numbers that it has seen."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str) -> None:
        self.seen: list[int] = []
        self.consumer = PushConsumer(cluster.namesrv, group, topic, self._handle, start_from="first")

    async def _handle(self, message: ReceivedMessage) -> None:
        self.seen.append(int(message.body))

    async def until(self, is_so: Callable[[list[int]], bool]) -> None:
        """Go on once it is so of what was seen."""
        async with asyncio.timeout(WITHIN_S):
            while not is_so(self.seen):  # noqa: ASYNC110 - what handlers have seen
                await asyncio.sleep(0.02)

    async def has_seen(self, *numbers: int) -> None:
        await self.until(lambda seen: sorted(seen) == sorted(numbers))


async def test_a_paused_group_gets_nothing_that_is_sent_then_until_it_is_resumed(
    cluster: LocalCluster, topic: str
) -> None:
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
        assert (sorted(paused.seen), shown["state"], shown["lag"]) == (list(range(4)), "stable", 8)
        assert len(shown["members"]) == 1
        assert "paused resumed" in await dledger(cluster, "group", "resume", "paused")
        await paused.has_seen(*range(12))


async def test_a_member_that_comes_while_its_group_is_paused_gets_nothing_until_it_is_resumed(
    cluster: LocalCluster, topic: str
) -> None:
    await send(cluster, topic, *range(4))
    async with Admin(cluster.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig("late"))
    await dledger(cluster, "group", "pause", "late")
    late, other = Member(cluster, "late", topic), Member(cluster, "witness", topic)
    async with late.consumer, other.consumer:
        await other.has_seen(*range(4))
        shown = json.loads(await dledger(cluster, "group", "describe", "late", "--topic", topic, "-o", "json"))
        assert (late.seen, shown["state"], shown["lag"]) == ([], "stable", 4)
        await dledger(cluster, "group", "resume", "late")
        await late.has_seen(*range(4))


async def test_a_group_that_skips_goes_on_with_what_comes_then_although_its_member_runs(
    cluster: LocalCluster, topic: str
) -> None:
    await send(cluster, topic, *range(20))
    began, go_on = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(int(message.body))
        began.set()
        await go_on.wait()

    options = {"start_from": "first", "concurrency": 1}
    async with asyncio.timeout(WITHIN_S), PushConsumer(cluster.namesrv, "skips", topic, handler, **options):  # type: ignore[arg-type]
        await began.wait()
        moved = json.loads(await dledger(cluster, "group", "skip", "skips", "--topic", topic, "-o", "json"))
        assert [(one["queue_id"], one["offset"]) for one in moved] == [(0, 10), (1, 10)]
        await send(cluster, topic, 20, 21)
        go_on.set()
        while not {20, 21} <= set(seen):  # noqa: ASYNC110 - what handlers have seen
            await asyncio.sleep(0.02)
    assert sorted(seen[1:]) == [20, 21]


async def test_a_group_goes_on_where_another_one_is_although_its_member_runs(cluster: LocalCluster, topic: str) -> None:
    await send(cluster, topic, *range(10))
    target = Member(cluster, "target", topic)
    async with (
        target.consumer,
        PushConsumer(cluster.namesrv, "source", topic, start_from="first", auto_ack=False) as source,
    ):
        await target.has_seen(*range(10))
        done: list[int] = []
        async with asyncio.timeout(WITHIN_S):
            async for message in source:
                if message.queue_offset < 3:
                    message.ack()
                    done.append(int(message.body))
                if len(done) == 6:
                    break
        await source.commit()
        said = await dledger(cluster, "group", "clone", "source", "target", "--topic", topic)
        assert "target goes on where source is" in said
        await target.has_seen(*range(10), *range(6, 10))
    shown = json.loads(await dledger(cluster, "group", "describe", "source", "--topic", topic, "-o", "json"))
    assert [one["committed"] for one in shown["queues"]] == [3, 3]


async def test_only_groups_that_are_there_are_cloned_and_paused(cluster: LocalCluster, topic: str) -> None:
    for words in (("clone", "absent", "target"), ("pause", "absent"), ("resume", "absent")):
        assert "there is no consumer group 'absent'" in await dledger(cluster, "group", *words, code=1)
    async with Admin(cluster.namesrv) as admin:
        assert "absent" not in await admin.groups()


async def test_consume_prints_what_an_expression_in_sql_is_true_of(cluster: LocalCluster, topic: str) -> None:
    await send(cluster, topic, *range(10))
    read = ("consume", "--topic", topic, "--from", "beginning")
    found = await dledger(cluster, *read, "--to", "end", "--sql", "number BETWEEN 3 AND 7 AND number <> 5")
    assert sorted(map(int, found.split())) == [3, 4, 6, 7]
    assert await dledger(cluster, *read, "--to", "end", "--sql", "absent > 1") == ""
    group = ("consume", "--topic", topic, "--group", "in-sql", "--from", "beginning", "-n", "2")
    found = await dledger(cluster, *group, "--sql", "number > 7")
    assert sorted(map(int, found.split())) == [8, 9]


@pytest.mark.parametrize("expression", ["number >", "number > 'a", "number BETWEEN 9 AND 1"])
@pytest.mark.parametrize("group", [(), ("--group", "in-bad-sql")])
async def test_consume_tells_what_is_wrong_with_an_expression_in_sql_and_prints_nothing(
    cluster: LocalCluster, topic: str, expression: str, group: tuple[str, ...]
) -> None:
    await send(cluster, topic, 1)
    words = ("consume", "--topic", topic, "--from", "beginning", "-n", "1", *group, "--sql", expression)
    said = await dledger(cluster, *words, code=1)
    assert said.startswith("Error: SQL92 expression, line 1, column ")
    assert said.count("\n") == 1
