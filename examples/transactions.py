"""Tell others of an order if, and only if, it is in the database, even if a process dies in between.

python examples/transactions.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Decision, OpenTransaction, PushConsumer, ReceivedMessage, TransactionProducer

TOPIC = "example-placed-orders"
CHECK_AFTER_S = 2

database: set[str] = set()
"""The orders that were placed. It stands for a database, in which the message's unique key is stored with the order."""


async def was_placed(transaction: OpenTransaction) -> Decision:
    """Answer a broker's question about a transaction that did not end in time, perhaps one of another process."""
    decision: Decision = "commit" if transaction.unique_key in database else "rollback"
    print(f"{transaction.unique_key}: asked by a broker, {decision}")
    return decision


async def place_orders(producer: TransactionProducer) -> None:
    """Place one order, let one fail, and leave two as if their process had died after and before placing them."""
    placed = await producer.begin(TOPIC, b"a book", unique_key="order-1")
    database.add("order-1")
    await producer.commit(placed)

    failed = await producer.begin(TOPIC, b"a car", unique_key="order-2")
    await producer.rollback(failed)

    await producer.begin(TOPIC, b"a pen", unique_key="order-3", check_after_s=CHECK_AFTER_S)
    database.add("order-3")

    await producer.begin(TOPIC, b"a hat", unique_key="order-4", check_after_s=CHECK_AFTER_S)


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    received: list[str] = []
    all_received = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        received.append(message.message_id)
        if len(received) == 2:
            all_received.set()

    async with (
        TransactionProducer(name_server, group="example-shop", check=was_placed) as producer,
        PushConsumer(name_server, "example-shipping", {TOPIC: "*"}, handler),
    ):
        await place_orders(producer)
        await all_received.wait()
    print(f"consumers saw {', '.join(sorted(received))}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
