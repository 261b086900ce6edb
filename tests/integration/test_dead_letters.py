"""`dledger dlq` against a cluster of real processes: what is resent, how it looks then, and that it is sent once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from cluster_checks import read_topic

from dledger_client import Admin, Producer, PushConsumer, ReceivedMessage, SubscriptionGroupConfig
from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture(scope="module")
MANY = 300


def start(cluster: LocalCluster, *words: str) -> subprocess.Popen[str]:
    """Start `dledger dlq`."""
    return subprocess.Popen(
        [sys.executable, "-m", "dledger_admin", "dlq", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DLEDGER_NAMESRV": cluster.namesrv},
    )


def dlq(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """Run `dledger dlq` to its end; returns what it printed."""
    process = start(cluster, *words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out if code == 0 or out else err


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The test's topic, and its consumer group."""
    return request.node.originalname.removeprefix("test_")[:100]


async def bury(cluster: LocalCluster, topic: str, count: int, total: int | None = None) -> None:
    """Have a group fail to handle the next messages of a topic, until it has `total` dead letters."""
    async with (
        asyncio.timeout(60),
        PushConsumer(
            cluster.namesrv, topic, {topic: "*"}, start_from="first", max_reconsume_times=0, auto_ack=False
        ) as consumer,
    ):
        for _ in range(count):
            (await anext(consumer)).retry()
        while listed(cluster).get(topic, 0) < (total or count):
            await consumer.commit()


def listed(cluster: LocalCluster) -> dict[str, int]:
    """How many dead letters each group has."""
    return {one["group"]: one["messages"] for one in json.loads(dlq(cluster, "list", "-o", "json"))}


async def copies(cluster: LocalCluster, topic: str) -> list[ReceivedMessage]:
    """The messages of a topic that are copies of dead letters."""
    return [message for message in await read_topic(cluster.namesrv, topic) if "DEAD_LETTER_ID" in message.properties]


async def test_a_dead_letter_is_listed_shown_exported_and_resent_once(cluster: LocalCluster, name: str) -> None:
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic(name, queues=2)
        sent = await producer.send(name, b"body", key=["k1", "k2"], tags="red", properties={"own": "x"})
    await bury(cluster, name, 1)
    assert listed(cluster)[name] == 1
    shown = dlq(cluster, "show", name)
    assert f"from        {name}" in shown
    assert f"was         {sent.offset_message_id}" in shown
    [line] = dlq(cluster, "export", name).splitlines()
    [letter] = json.loads(dlq(cluster, "show", name, "-o", "json"))
    assert json.loads(line) == letter
    assert (letter["topic"], letter["message_id"], letter["body"]) == (name, sent.message_id, "body")

    assert json.loads(dlq(cluster, "resend", name, "--all", "-o", "json")) == {
        "group": name,
        "resent": 1,
        "already": 0,
        "failed": [],
    }
    [copy] = await copies(cluster, name)
    assert (copy.message_id, copy.body, copy.keys, copy.tags) == (sent.message_id, b"body", ("k1", "k2"), "red")
    assert {name: copy.properties.get(name) for name in ("own", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY")} == {
        "own": "x",
        "RETRY_TOPIC": None,
        "ORIGIN_MESSAGE_ID": None,
        "DELAY": None,
    }
    assert copy.reconsume_times == 0
    assert "0 dead letters" in dlq(cluster, "resend", name, "--all")
    assert "0 dead letters" in dlq(cluster, "resend", name, "--id", letter["offset_message_id"])
    assert len(await copies(cluster, name)) == 1
    assert "1 dead letter of" in dlq(cluster, "resend", name, "--id", letter["offset_message_id"], "--again")
    assert len(await copies(cluster, name)) == 2
    assert len(dlq(cluster, "export", name).splitlines()) == 1


async def test_a_message_that_dies_again_is_resent_again(cluster: LocalCluster, name: str) -> None:
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic(name, queues=1)
        await producer.send(name, b"body")
    await bury(cluster, name, 1)
    dlq(cluster, "resend", name, "--all")
    await bury(cluster, name, 1, total=2)
    assert "1 dead letter of" in dlq(cluster, "resend", name, "--all")
    assert len({copy.properties["DEAD_LETTER_ID"] for copy in await copies(cluster, name)}) == 2


async def test_a_run_that_is_killed_is_finished_by_the_next_one(cluster: LocalCluster, name: str) -> None:
    bodies = [b"%d" % number for number in range(MANY)]
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic(name, queues=2)
        await producer.send_batch(name, bodies)
    await bury(cluster, name, MANY)
    first = start(cluster, "resend", name, "--all")
    async with asyncio.timeout(60):
        while not await copies(cluster, name):
            pass
    first.kill()
    first.communicate()
    result = json.loads(dlq(cluster, "resend", name, "--all", "-o", "json"))
    assert (result["resent"] + result["already"], result["failed"]) == (MANY, [])
    assert result["already"] > 0
    assert Counter(copy.body for copy in await copies(cluster, name)) == dict.fromkeys(bodies, 1)


async def test_what_cannot_be_resent_is_named(cluster: LocalCluster, name: str) -> None:
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        for topic in (name, f"{name}_other"):
            await admin.create_topic(topic, queues=1)
        sent = await producer.send(name, b"body")
        await bury(cluster, name, 1)
        assert "no dead letter of" in dlq(cluster, "resend", name, "--id", sent.offset_message_id, code=1)
        await admin.delete_topic(name)
    result = json.loads(dlq(cluster, "resend", name, "--all", "-o", "json", code=1))
    [failure] = result["failed"]
    assert (result["resent"], failure["topic"]) == (0, name)
    assert "does not exist" in failure["reason"]
    dlq(cluster, "resend", name, "--all", "--topic", f"{name}_other")
    assert [copy.body for copy in await copies(cluster, f"{name}_other")] == [b"body"]


async def test_a_group_without_dead_letters_has_none_to_show(cluster: LocalCluster, name: str) -> None:
    assert "there is no consumer group" in dlq(cluster, "show", name, code=1)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig(name))
    assert (dlq(cluster, "show", name), dlq(cluster, "export", name)) == ("", "")
    assert "0 dead letters" in dlq(cluster, "resend", name, "--all")
