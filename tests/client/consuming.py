"""Steps of tests that consume."""

from __future__ import annotations

import asyncio

from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import format_properties


async def take(consumer, count):
    messages = []
    async with asyncio.timeout(10):
        async for message in consumer:
            messages.append(message)
            if len(messages) == count:
                if consumer._auto_ack:  # as a program would before it leaves the loop
                    message.ack()
                return messages
    raise AssertionError("the consumer was closed")


def fill(cluster, count, topic="T", queue_id=0, **properties):
    for number in range(count):
        cluster.group.store(topic, queue_id, b"%04d" % number, format_properties(properties).encode())


def is_pull_of(command, offset):
    ext = command.ext
    return command.code == RequestCode.PULL_MESSAGE and (ext["topic"], ext["queueOffset"]) == ("T", str(offset))
