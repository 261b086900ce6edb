"""Measure of filters: how many messages a node looks through in a second for the one in a hundred that matches.

    .venv/bin/python -m bench.filters [MESSAGES]

A cluster of three nodes holds so many messages in 8 queues; one consumer reads all of them, 32 at most for each pull,
through tags, then in SQL92. What is measured is the whole way: pulls over the network, queue, log, filter, answer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from dledger_client import Filter, Message, Producer, PullConsumer, Sql
from dledger_client.testing import LocalCluster

TOPIC: Final = "filtered"
ONE_IN: Final = 100
BATCH: Final = 128
EXPRESSIONS: Final = (
    "region = 'eu'",
    "amount > 98 AND region IS NOT NULL",
    "region IN ('eu', 'us') AND NOT (amount < 99)",
)


def messages_of(first: int, count: int) -> list[Message]:
    """Messages with a tag and two properties; every hundredth is wanted."""
    found = []
    for number in range(first, first + count):
        wanted = number % ONE_IN == ONE_IN - 1
        properties = {"region": "eu" if wanted else "asia", "amount": str(number % ONE_IN)}
        found.append(Message(b"x" * 100, tags="wanted" if wanted else "other", properties=properties))
    return found


async def fill(namesrv: str, count: int) -> None:
    """Send all messages, many batches at a time."""
    async with Producer(namesrv, timeout=60) as producer:
        for first in range(0, count, BATCH * 16):
            batches = range(first, min(first + BATCH * 16, count), BATCH)
            sends = (producer.send_batch(TOPIC, messages_of(start, min(BATCH, count - start))) for start in batches)
            await asyncio.gather(*sends)


async def scan(namesrv: str, count: int, wanted: Filter) -> float:
    """Read all that matches; returns messages looked through in a second."""
    async with PullConsumer(namesrv, filter=wanted) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        await consumer.seek_to_begin()
        began = time.perf_counter()
        found = 0
        while found < count // ONE_IN:
            found += len(await consumer.poll(32, timeout=10))
        return count / (time.perf_counter() - began)


async def measure(namesrv: str, count: int) -> None:
    """Print a rate for each filter, thrice."""
    await fill(namesrv, count)
    for _ in range(3):
        print(f"{await scan(namesrv, count, 'wanted'):>12,.0f}/s  tag", flush=True)
        for expression in EXPRESSIONS:
            print(f"{await scan(namesrv, count, Sql(expression)):>12,.0f}/s  {expression}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Fill a cluster of its own and measure."""
    count = int(arguments[0]) if arguments else 1_000_000
    with LocalCluster() as cluster:
        asyncio.run(measure(cluster.namesrv, count))


if __name__ == "__main__":
    main(sys.argv[1:])
