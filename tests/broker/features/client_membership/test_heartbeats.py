"""Heartbeats over a real connection: they make members of a consumer group, and the broker notifies the members."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from broker_in_process import Client, node_config, running

from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode, ResponseCode


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(node_config(tmp_path), bootstrap=True) as started:
        yield started


@pytest_asyncio.fixture
async def client(broker: Broker) -> Client:
    return await Client.connect(broker.listener.port)


async def members(client: Client) -> list[str]:
    answer = await client.call(38, {"consumerGroup": "CG"})
    return msgspec.json.decode(answer.body)["consumerIdList"]


async def test_members_are_told_when_others_come_and_go(broker: Broker, client: Client) -> None:
    second = await Client.connect(broker.listener.port)
    await client.heartbeat("c1")
    assert (await client.next_push()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    await second.heartbeat("c2")
    push = await client.next_push()
    assert (push.code, push.is_oneway, push.ext) == (40, True, {"consumerGroup": "CG"})
    assert push.opaque != 0
    assert await members(client) == ["c1", "c2"]
    second.close()
    assert (await client.next_push()).ext == {"consumerGroup": "CG"}
    assert await members(client) == ["c1"]


async def test_held_pulls_of_a_group_are_answered_before_its_members_are_notified(
    broker: Broker, client: Client
) -> None:
    """The notified thread of a stock client may itself wait for pulls of queues that it gave up and gets back."""
    second = await Client.connect(broker.listener.port)
    await client.send(b"a")
    await client.heartbeat("c1")
    await client.next_push()
    pull = asyncio.create_task(client.pull(1, sysFlag="6", suspendTimeoutMillis="60000"))
    async with asyncio.timeout(20):
        while not broker.service.parts[PullRequests].held:  # noqa: ASYNC110 -- there is no event for a pull that waits
            await asyncio.sleep(0.005)
    await second.heartbeat("c2")
    assert (await pull).code == ResponseCode.PULL_NOT_FOUND
    await client.next_push()
    codes = [command.code for command in client.received[-2:]]
    assert codes == [ResponseCode.PULL_NOT_FOUND, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{}", "clientID"),
        (b"", "no JSON"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"SIDEWAYS"}]}', "consumeType"),
        (b"\xff\xfe", "no JSON"),
    ],
)
async def test_a_bad_heartbeat_is_answered_with_a_text(client: Client, body: bytes, text: str) -> None:
    answer = await client.call(34, {}, body)
    assert answer.code in {1, 29}
    assert text in (answer.remark or "")
