"""Receive only the matching orders: brokers filter messages by their properties.

python examples/filtered_consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Message, Producer, PushConsumer, Sql

TOPIC = "example-filtered"
ORDERS = (("eu", 20), ("eu", 200), ("us", 300), ("eu", 500))


async def main(name_server: str) -> None:
    """Receive the two of four orders that are large orders of Europe."""
    async with Producer(name_server) as producer:
        orders = [
            Message(f"{region} {amount}".encode(), tags="order", properties={"region": region, "amount": str(amount)})
            for region, amount in ORDERS
        ]
        await producer.send_batch(TOPIC, orders)
    wanted = Sql("TAGS = 'order' AND region = 'eu' AND amount > 100")
    async with PushConsumer(name_server, "example-filtering", TOPIC, filter=wanted) as consumer:
        orders_of_europe = aiter(consumer)
        for _ in range(2):
            message = await anext(orders_of_europe)
            print(f"received {message.body.decode()}")
            message.ack()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
