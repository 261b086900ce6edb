"""Measure of filters: messages that a node looks through in a second if one in a hundred matches.

    .venv/bin/python -m bench.filters [MESSAGES]

A cluster of three nodes holds MESSAGES messages in 8 queues. One consumer reads all that match, at most 32 for each
pull: first by tag, then by SQL92. The measured time covers the whole way: pulls over the network, queue, log, filter,
answer.
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
    """Return messages with a tag and two properties. Every hundredth matches."""
    messages = []
    for number in range(first, first + count):
        is_wanted = number % ONE_IN == ONE_IN - 1
        properties = {"region": "eu" if is_wanted else "asia", "amount": str(number % ONE_IN)}
        messages.append(Message(b"x" * 100, tags="wanted" if is_wanted else "other", properties=properties))
    return messages


async def fill(namesrv: str, count: int) -> None:
    """Send all messages, many batches at a time."""
    async with Producer(namesrv, timeout=60) as producer:
        for first in range(0, count, BATCH * 16):
            batches = range(first, min(first + BATCH * 16, count), BATCH)
            sends = (producer.send_batch(TOPIC, messages_of(start, min(BATCH, count - start))) for start in batches)
            await asyncio.gather(*sends)


async def scan(namesrv: str, count: int, wanted: Filter) -> float:
    """Read all messages that match. Returns the number of messages looked through in a second."""
    async with PullConsumer(namesrv, filter=wanted) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        await consumer.seek_to_begin()
        began = time.perf_counter()
        received = 0
        while received < count // ONE_IN:
            received += len(await consumer.poll(32, timeout=10))
        return count / (time.perf_counter() - began)


async def measure(namesrv: str, count: int) -> None:
    """Print a rate for each filter, three times."""
    await fill(namesrv, count)
    for _ in range(3):
        print(f"{await scan(namesrv, count, 'wanted'):>12,.0f}/s  tag", flush=True)
        for expression in EXPRESSIONS:
            print(f"{await scan(namesrv, count, Sql(expression)):>12,.0f}/s  {expression}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Start a cluster, fill it and measure."""
    count = int(arguments[0]) if arguments else 1_000_000
    with LocalCluster() as cluster:
        asyncio.run(measure(cluster.namesrv, count))


if __name__ == "__main__":
    main(sys.argv[1:])
