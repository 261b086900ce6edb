"""One cluster for all tests that only look at it or change what is theirs, and a console in front of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from served_console import Visitor, served

from dledger_admin.operations.access import Access
from dledger_client import Admin, Producer, PushConsumer
from dledger_client.testing import LocalCluster

HTML_BODY = b"<img src=x onerror=alert(1)><script>document.title='owned'</script>"
ORDERS = 12


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1) as started:
        asyncio.run(fill(started.namesrv))
        yield started


async def fill(namesrv: str) -> None:
    """Store orders, of which billing has read some, strange bodies, and dead letters of two groups."""
    async with Admin(namesrv) as admin, Producer(namesrv, group="shop", trace=True) as producer:
        await admin.create_topic("orders", queues=2)
        for number in range(ORDERS):
            body = json.dumps({"order": number}).encode()
            await producer.send("orders", body, key=f"order-{number}", tags="new")
        await admin.create_topic("strange", queues=1)
        await producer.send("strange", HTML_BODY, key="html")
        await producer.send("strange", b"\x00\xff\x10binary", key="binary")
        await producer.send("strange", json.dumps({"rows": ["x" * 90] * 12_000}).encode(), key="megabyte")
        async with PushConsumer(namesrv, "billing", "orders", start_from="first") as consumer:
            for _ in range(5):
                (await anext(consumer)).ack()
        for topic, group in (("failing", "broken"), ("spoilt", "browsed")):
            await admin.create_topic(topic, queues=1)
            for number in range(3):
                await producer.send(topic, b"letter %d" % number, key=f"letter-{number}")
            await bury(admin, namesrv, topic, group)


async def bury(admin: Admin, namesrv: str, topic: str, group: str) -> None:
    """Let a group fail for the three messages of a topic."""
    settings = {"start_from": "first", "max_reconsume_times": 0, "auto_ack": False}
    async with asyncio.timeout(60), PushConsumer(namesrv, group, topic, **settings) as consumer:
        for _ in range(3):
            (await anext(consumer)).retry(reason="ValueError: <b>no price</b>")
        while await count(admin, f"%DLQ%{group}") < 3:
            await consumer.commit()


async def count(admin: Admin, topic: str) -> int:
    """Return the number of messages that a topic keeps, 0 if it does not exist."""
    if topic not in await admin.topics(include_system=True):
        return 0
    return sum(queue.end - queue.first for queue in (await admin.topic_statistics(topic)).queues)


@pytest.fixture(scope="session")
def address(cluster: LocalCluster) -> Iterator[str]:
    with served(Access(cluster.namesrv), "console.example") as started:
        yield started


@pytest.fixture
def visitor(address: str) -> Iterator[Visitor]:
    one = Visitor(address)
    yield one
    one.http.close()
