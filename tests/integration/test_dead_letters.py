"""`dledger dlq` against a cluster of real processes resends each dead letter once, as a copy of known form."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from cluster_checks import read_topic
from commands import output

from dledger_client import Admin, Producer, PushConsumer, ReceivedMessage, SubscriptionGroupConfig
from dledger_client.testing import LocalCluster, local_cluster_fixture

pytestmark = pytest.mark.long

cluster = local_cluster_fixture(scope="module")
MANY = 300


def start(cluster: LocalCluster, *words: str) -> subprocess.Popen[str]:
    """Start `dledger dlq`."""
    command, environment = [sys.executable, "-m", "dledger_admin", "dlq", *words], {"DLEDGER_NAMESRV": cluster.namesrv}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment})


def dlq(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """Run `dledger dlq` to its end, and return its output."""
    return output("dlq", *words, code=code, DLEDGER_NAMESRV=cluster.namesrv)


async def bury(cluster: LocalCluster, topic: str, count: int, total: int | None = None) -> None:
    """Let a group fail for the next messages of a topic, until it has `total` dead letters."""
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
    """Return the number of dead letters of each group."""
    return {one["group"]: one["messages"] for one in json.loads(dlq(cluster, "list", "-o", "json"))}


async def die(cluster: LocalCluster, topic: str, bodies: Sequence[bytes] = (b"body",), queues: int = 1) -> None:
    """Create a topic with messages, and let its group fail for all of them."""
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic(topic, queues=queues)
        await producer.send_batch(topic, bodies)
    await bury(cluster, topic, len(bodies))


async def copies(cluster: LocalCluster, topic: str) -> list[ReceivedMessage]:
    """Return the messages of a topic that are copies of dead letters."""
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

    result = json.loads(dlq(cluster, "resend", name, "--all", "-o", "json"))
    assert result == {"group": name, "resent": 1, "already": 0, "failed": []}
    [copy] = await copies(cluster, name)
    assert (copy.message_id, copy.body, copy.keys, copy.tags) == (sent.message_id, b"body", ("k1", "k2"), "red")
    assert copy.properties["own"] == "x"
    assert copy.properties.keys().isdisjoint({"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY"})
    assert copy.reconsume_times == 0
    assert "0 dead letters" in dlq(cluster, "resend", name, "--all")
    assert "0 dead letters" in dlq(cluster, "resend", name, "--id", letter["offset_message_id"])
    assert len(await copies(cluster, name)) == 1
    assert "1 dead letter of" in dlq(cluster, "resend", name, "--id", letter["offset_message_id"], "--again")
    assert len(await copies(cluster, name)) == 2
    assert len(dlq(cluster, "export", name).splitlines()) == 1


async def test_a_message_that_dies_again_is_resent_again(cluster: LocalCluster, name: str) -> None:
    await die(cluster, name)
    dlq(cluster, "resend", name, "--all")
    await bury(cluster, name, 1, total=2)
    assert "1 dead letter of" in dlq(cluster, "resend", name, "--all")
    assert len({copy.properties["DEAD_LETTER_ID"] for copy in await copies(cluster, name)}) == 2


async def test_a_killed_resend_is_completed_by_the_next_run(cluster: LocalCluster, name: str) -> None:
    bodies = [b"%d" % number for number in range(MANY)]
    await die(cluster, name, bodies, queues=2)
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


async def test_dead_letters_that_cannot_be_resent_are_named(cluster: LocalCluster, name: str) -> None:
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


async def test_dlq_commands_of_a_group_without_dead_letters_show_nothing(cluster: LocalCluster, name: str) -> None:
    assert "there is no consumer group" in dlq(cluster, "show", name, code=1)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig(name))
    assert (dlq(cluster, "show", name), dlq(cluster, "export", name)) == ("", "")
    assert "0 dead letters" in dlq(cluster, "resend", name, "--all")
