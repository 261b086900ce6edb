"""Follow a message from its producer to its consumer.

python examples/traced.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, PushConsumer
from dledger_remoting.traces import DeliveryTrace, HandlingTrace, SendTrace

TOPIC = "example-traced"


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)

    async with Producer(name_server, group="example-traced-senders", trace=True) as producer:
        sent = await producer.send(TOPIC, b"who has seen me?", key="example-traced-17")

    async with PushConsumer(name_server, "example-traced-readers", TOPIC, trace=True) as consumer:
        async for message in consumer:
            message.ack()
            break

    async with Admin(name_server) as admin:
        for trace in await admin.message_trace(sent.message_id):
            match trace:
                case SendTrace():
                    print(f"sent by {trace.group} to {trace.topic}, {trace.body_bytes} bytes")
                case DeliveryTrace():
                    print(f"delivered to {trace.group}, delivery {trace.reconsume_times + 1}")
                case HandlingTrace():
                    print(f"{'handled' if trace.succeeded else 'not handled'} by {trace.group}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
