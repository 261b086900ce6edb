"""Share queues by configuration: each member reads its configured queues, and nothing moves when others come or go.

python examples/strategies.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, PushConsumer, allocate_by_config

TOPIC = "example-shards"
GROUP = "example-shard-readers"


async def main(name_server: str) -> None:
    """Let two members read the even and the odd queues."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with Producer(name_server) as producer:
        queues = await producer.queues(TOPIC)
        for queue in queues:
            await producer.send(TOPIC, f"of queue {queue.queue_id}".encode(), queue=queue)
    even = allocate_by_config(queue for queue in queues if queue.queue_id % 2 == 0)
    odd = allocate_by_config(queue for queue in queues if queue.queue_id % 2 == 1)
    async with (
        PushConsumer(name_server, GROUP, TOPIC, strategy=even) as first,
        PushConsumer(name_server, GROUP, TOPIC, strategy=odd) as second,
    ):
        for name, member in (("even", first), ("odd", second)):
            bodies = sorted([await take_one(member) for _ in range(2)])
            print(f"{name}: {', '.join(bodies)}")


async def take_one(consumer: PushConsumer) -> str:
    """Return the next message's body."""
    [message] = await consumer.receive(1)
    message.ack()
    return message.body.decode()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
