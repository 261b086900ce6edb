"""Give a message back that cannot be handled yet, until it can.

python examples/retries.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, PushConsumer

TOPIC = "example-deliveries"


async def main(name_server: str) -> None:
    """Open the door at the third attempt; the message comes again after the delay that was asked for."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with Producer(name_server) as producer:
        await producer.send(TOPIC, b"a parcel")
    async with PushConsumer(name_server, "example-postmen", TOPIC) as consumer:
        async for message in consumer:
            tries = message.reconsume_times + 1
            if tries < 3:
                consumer.nack(message, delay_s=0.2)
                continue
            print(f"delivered {message.body.decode()} at try {tries}")
            message.ack()
            break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
