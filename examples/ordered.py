"""Keep the order of each account's changes, while different accounts are worked on at the same time.

python examples/ordered.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict

from dledger_client import Admin, OrderlyConsumer, Producer, ReceivedMessage

TOPIC = "example-accounts"
ACCOUNTS = 5
CHANGES = 10


async def produce(name_server: str) -> None:
    """Send messages with ordering keys: those of one key go to one queue, one after the other, even when attempts are
    repeated.
    """
    async with Producer(name_server) as producer:
        await asyncio.gather(
            *(
                producer.send(TOPIC, b"%d" % change, key=f"account-{account}", ordering_key=f"account-{account}")
                for change in range(CHANGES)
                for account in range(ACCOUNTS)
            )
        )


async def consume(name_server: str) -> dict[str, list[int]]:
    """Handle a queue's next message only after its predecessor has succeeded, by one member at a time."""
    changes: dict[str, list[int]] = defaultdict(list)
    finished = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        changes[message.key or ""].append(int(message.body))
        if sum(map(len, changes.values())) == ACCOUNTS * CHANGES:
            finished.set()

    async with OrderlyConsumer(name_server, "example-ledgers", TOPIC, handler):
        await finished.wait()
    return changes


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    await produce(name_server)
    for account, numbers in sorted((await consume(name_server)).items()):
        print(f"{account}: {'in order' if numbers == sorted(numbers) else 'OUT OF ORDER'} {numbers}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
