"""Handle urgent messages first: messages of queues with higher ids come before those of lower ones.

python examples/priorities.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, PushConsumer

TOPIC = "example-tickets"
GROUP = "example-desk"


async def main(name_server: str) -> None:
    """Send tickets as they come, and handle them by their priority."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with Producer(name_server) as producer:
        later, urgent = await producer.queues(TOPIC)
        for text, queue in ((b"a wish", later), (b"a question", later), (b"a fire", urgent)):
            await producer.send(TOPIC, text, queue=queue)
    handled = 0
    async with PushConsumer(name_server, GROUP, TOPIC, priority=True) as consumer:
        async for message in consumer:
            print(message.body.decode())
            handled += 1
            if handled == 3:
                message.ack()
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
