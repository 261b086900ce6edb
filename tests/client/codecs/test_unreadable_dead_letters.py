"""On a real cluster, bodies that do not decode become dead letters of their group, and keep their bytes."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client import (
    Admin,
    OrderlyConsumer,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    SubscriptionGroupConfig,
)
from dledger_client.codecs import JsonCodec
from dledger_client.testing import LocalCluster
from dledger_remoting.topics import dead_letter_topic

pytestmark = pytest.mark.long

CODEC = JsonCodec(int)
BAD, GOOD = b"no number", b"17"
REASON = "does not decode: JSON is malformed: invalid character (byte 4)"


@pytest.fixture
async def group(dledger_cluster: LocalCluster, dledger_topic: str, dledger_producer: Producer) -> str:
    """A group whose messages are dead letters after one retry; its topic has a good body behind a bad one."""
    group = f"{dledger_topic}-readers"
    async with Admin(dledger_cluster.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig(group, retry_max_times=1))
    for body in (BAD, GOOD):
        await dledger_producer.send(dledger_topic, body, ordering_key="one")
    return group


async def first_dead_letter(cluster: LocalCluster, group: str) -> ReceivedMessage:
    async with PushConsumer(cluster.namesrv, f"{group}-undertakers", dead_letter_topic(group)) as consumer:
        async with asyncio.timeout(60):
            message = await anext(consumer)
        message.ack()
        return message


async def test_a_pushed_body_that_does_not_decode_is_a_dead_letter(
    dledger_cluster: LocalCluster, dledger_topic: str, group: str
):
    values: list[int] = []

    async def handle(message: ReceivedMessage[int]) -> None:
        values.append(message.value)

    async with PushConsumer(dledger_cluster.namesrv, group, dledger_topic, handle, codec=CODEC):
        dead_letter = await first_dead_letter(dledger_cluster, group)
        assert (dead_letter.body, dead_letter.failure_reason) == (BAD, REASON)
    assert values == [17]


async def test_in_order_it_is_a_dead_letter_before_its_successor_is_handled(
    dledger_cluster: LocalCluster, dledger_topic: str, group: str
):
    handled = asyncio.Event()

    async def handle(message: ReceivedMessage[int]) -> None:
        assert message.value == 17
        handled.set()

    options = {"codec": CODEC, "max_reconsume_times": 1}
    async with OrderlyConsumer(dledger_cluster.namesrv, group, dledger_topic, handle, **options):
        async with asyncio.timeout(60):
            await handled.wait()
        dead_letter = await first_dead_letter(dledger_cluster, group)
        assert (dead_letter.body, dead_letter.failure_reason) == (BAD, REASON)


async def test_a_popped_body_that_does_not_decode_is_a_dead_letter(
    dledger_cluster: LocalCluster, dledger_topic: str, group: str
):
    dead_letter = asyncio.create_task(first_dead_letter(dledger_cluster, group))
    values: list[int] = []
    async with SimpleConsumer(dledger_cluster.namesrv, group, dledger_topic, invisible=1, codec=CODEC) as consumer:
        while not dead_letter.done():
            for message in await consumer.receive(wait=1):
                values.append(message.value)
                await consumer.ack(message)
    assert ((await dead_letter).body, (await dead_letter).failure_reason) == (BAD, REASON)
    assert values == [17]
