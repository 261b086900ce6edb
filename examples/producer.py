"""Send messages one by one, many at a time, and in a batch.

python examples/producer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Message, Producer, SendError

TOPIC = "example-orders"


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)

    async with Producer(name_server, group="example-producers") as producer:
        result = await producer.send(TOPIC, b"a first order", key="order-1", tags="new", properties={"colour": "red"})
        print(f"stored as {result.message_id}: queue {result.queue_id}, offset {result.queue_offset}")

        results = await asyncio.gather(*(producer.send(TOPIC, b"order %d" % number) for number in range(1000)))
        print(f"{len(results)} messages acknowledged")

        batch = [Message(b"batched order %d" % number, key=f"order-{number}") for number in range(100)]
        stored = await producer.send_batch(TOPIC, batch)
        print(f"a batch in queue {stored[0].queue_id}, offsets {stored[0].queue_offset}-{stored[-1].queue_offset}")

        try:
            await producer.send(TOPIC, b"a last order", timeout=5.0)
        except SendError as error:
            # "not_sent": safe to send again. "unknown": it may be stored already.
            print(f"not acknowledged, outcome {error.outcome}: {error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
