"""Send reminders that are delivered after a delay or at a time, and recall one of them before that.

python examples/delayed.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from dledger_client import Admin, Message, Producer, PushConsumer

TOPIC = "example-reminders"


async def remind(name_server: str) -> None:
    """Send messages that consumers see when they are due. Until then the producer may recall them."""
    async with Producer(name_server, group="example-calendar") as producer:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        await producer.send(TOPIC, b"stand up", delay_s=1)
        await producer.send(TOPIC, Message(b"go home", key="evening", deliver_at=soon))
        dentist = await producer.send(TOPIC, b"see the dentist", delay_s=3600)
        if dentist.recall_handle is not None:
            await producer.recall(TOPIC, dentist.recall_handle)
            print("the dentist called: taken back")


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
    await remind(name_server)
    async with PushConsumer(name_server, "example-person", TOPIC) as consumer:
        async for message in consumer:
            print(message.body.decode())
            if message.key == "evening":
                message.ack()
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
