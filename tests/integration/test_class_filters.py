"""Class filters on real nodes: a consumer names a class, and gets the messages that the nodes' own code selects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_client import ClassFilter, Producer, PullConsumer, PushConsumer, SimpleConsumer
from dledger_client.testing import LocalCluster

LARGE = ClassFilter("com.example.Large")
CONFIG = """
[class_filters]
"com.example.Large" = "filters_of_tests:large"
"""
CODE = Path(__file__).parents[1] / "broker" / "features" / "class_filters"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(CODE))
        with LocalCluster(nodes=1, config=CONFIG) as started:
            yield started


async def fill(cluster: LocalCluster, topic: str, *bodies: bytes) -> None:
    async with Producer(cluster.namesrv) as producer:
        for body in bodies:
            await producer.send(topic, body)


async def test_every_kind_of_consumer_gets_the_messages_of_a_class_filter(cluster: LocalCluster) -> None:
    await fill(cluster, "amounts", *(b"%d" % amount for amount in (1, 200, 5, 300, 7)))
    wanted = [b"200", b"300"]
    async with PullConsumer(cluster.namesrv, filter=LARGE) as reader:
        await reader.assign(await reader.queues("amounts"))
        await reader.seek_to_begin()
        found: list[bytes] = []
        while len(found) < 2:
            found += [message.body for message in await reader.poll(timeout=10)]
        assert sorted(found) == wanted
    async with PushConsumer(cluster.namesrv, "pushed", "amounts", filter=LARGE) as consumer:
        pushed = aiter(consumer)
        async with asyncio.timeout(30):
            assert sorted([(await anext(pushed)).body for _ in wanted]) == wanted
            await fill(cluster, "amounts", b"3", b"400")
            assert (await anext(pushed)).body == b"400"
    async with SimpleConsumer(cluster.namesrv, "popped", "amounts", filter=LARGE) as simple:
        found = []
        while len(found) < 3:
            for message in await simple.receive():
                found.append(message.body)
                await simple.ack(message)
        assert sorted(found) == [*wanted, b"400"]
