"""Heartbeats over a real connection: who is in a consumer group, what that gets, whom the broker tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from broker_in_process import Client, node_config, running

from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode, ResponseCode


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(node_config(tmp_path), bootstrap=True) as started:
        yield started


async def members(client: Client, group: str = "CG") -> list[str]:
    answer = await client.call(38, {"consumerGroup": group})
    if answer.code == 1:
        assert answer.remark == f"no consumer for this group, {group}"
        return []
    found: dict[str, list[str]] = msgspec.json.decode(answer.body)
    return found["consumerIdList"]


async def test_a_heartbeat_makes_its_client_a_member_and_its_group_complete(broker: Broker) -> None:
    client = await Client.connect(broker.listener.port)
    assert await members(client) == []
    answer = await client.heartbeat("c1")
    assert (answer.code, answer.version) == (0, 479)
    assert await members(client) == ["c1"]
    assert "CG" in broker.state.table(GROUPS).by_name
    assert broker.state.topics["%RETRY%CG"].config.write_queue_nums == 1


async def test_members_are_told_when_others_come_and_go(broker: Broker) -> None:
    first, second = [await Client.connect(broker.listener.port) for _ in range(2)]
    await first.heartbeat("c1")
    assert (await first.next_push()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    await second.heartbeat("c2")
    push = await first.next_push()
    assert (push.code, push.is_oneway, push.ext) == (40, True, {"consumerGroup": "CG"})
    assert push.opaque != 0
    assert await members(first) == ["c1", "c2"]
    second.close()
    assert (await first.next_push()).ext == {"consumerGroup": "CG"}
    assert await members(first) == ["c1"]


async def test_waiting_pulls_end_before_a_member_is_told(broker: Broker) -> None:
    """A stock client may wait, in the very thread that is told, for pulls of queues that it gave up and gets back."""
    first, second = [await Client.connect(broker.listener.port) for _ in range(2)]
    await first.send(b"a")
    await first.heartbeat("c1")
    await first.next_push()
    pull = asyncio.create_task(first.pull(1, sysFlag="6", suspendTimeoutMillis="60000"))
    async with asyncio.timeout(20):
        while not broker.service.parts[PullRequests].held:  # noqa: ASYNC110 -- nothing tells that a pull waits
            await asyncio.sleep(0.005)
    await second.heartbeat("c2")
    assert (await pull).code == ResponseCode.PULL_NOT_FOUND
    await first.next_push()
    assert [command.code for command in first.received[-2:]] == [
        ResponseCode.PULL_NOT_FOUND,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    ]


async def test_unregistering_leaves_a_group(broker: Broker) -> None:
    client = await Client.connect(broker.listener.port)
    await client.heartbeat("c1")
    unregister = {"clientID": "c1", "consumerGroup": "CG", "producerGroup": ""}
    assert (await client.call(35, unregister)).code == 0
    assert await members(client) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{}", "clientID"),
        (b"", "no JSON"),
        (b'{"clientID":" "}', "clientID is empty"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"a b"}]}', "a b"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"SIDEWAYS"}]}', "consumeType"),
        (b"\xff\xfe", "no JSON"),
        (b'{"clientID":"c","producerDataSet":[' + b",".join([b'{"groupName":"g"}'] * 4_097) + b"]}", "4097 groups"),
    ],
)
async def test_a_bad_heartbeat_is_answered_with_a_text(broker: Broker, body: bytes, text: str) -> None:
    client = await Client.connect(broker.listener.port)
    answer = await client.call(34, {}, body)
    assert answer.code in {1, 29}
    assert text in (answer.remark or "")


async def test_system_groups_get_no_retry_topic(broker: Broker) -> None:
    client = await Client.connect(broker.listener.port)
    assert (await client.heartbeat("c1", "TOOLS_CONSUMER")).code == 0
    assert "%RETRY%TOOLS_CONSUMER" not in broker.state.topics
