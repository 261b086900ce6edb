"""Consume as a member of a group: with an iterator, then with a handler that fails now and then.

python examples/consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, PushConsumer, ReceivedMessage

TOPIC = "example-events"
COUNT = 20


async def iterate(name_server: str) -> None:
    """Acknowledge each message by asking for the next one, or by `ack`, for example before `break`."""
    async with PushConsumer(name_server, "example-readers", TOPIC) as consumer:
        received = 0
        async for message in consumer:
            print(f"read {message.body.decode()} from queue {message.queue_id} at {message.queue_offset}")
            received += 1
            if received == COUNT:
                message.ack()
                break


async def handle(name_server: str) -> None:
    """Let a handler raise: it gets the message again, through the group's retry topic, and the error is logged."""
    finished = asyncio.Event()
    done: set[bytes] = set()

    async def handler(message: ReceivedMessage) -> None:
        if message.body.endswith(b"7") and message.reconsume_times == 0:
            raise ValueError("not this time")
        done.add(message.body)
        if len(done) == COUNT:
            finished.set()

    async with PushConsumer(name_server, "example-handlers", {TOPIC: "*"}, handler, concurrency=4):
        await finished.wait()
    print(f"handled {len(done)} messages")


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with Producer(name_server) as producer:
        for number in range(COUNT):
            await producer.send(TOPIC, b"event %d" % number)
    await iterate(name_server)
    await handle(name_server)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
