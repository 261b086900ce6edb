"""Keep names of one tenant apart from those of others: both have a topic and a group of the same name.

python examples/namespaces.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, PushConsumer

TOPIC = "example-bills"
GROUP = "example-clerks"


async def main(name_server: str) -> None:
    """Let each tenant's consumer get its own message."""
    async with Admin(name_server) as admin:
        for tenant in ("north", "south"):
            await admin.create_topic(f"{tenant}%{TOPIC}", queues=1)
    for tenant in ("north", "south"):
        async with Producer(name_server, namespace=tenant) as producer:
            await producer.send(TOPIC, f"a bill of {tenant}".encode())
    for tenant in ("north", "south"):
        async with PushConsumer(name_server, GROUP, TOPIC, namespace=tenant) as consumer:
            async for message in consumer:
                print(f"{tenant}: {message.body.decode()} from {message.topic}, for brokers {message.queue.topic}")
                message.ack()
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
