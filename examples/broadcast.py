"""Deliver every message to every member of a group. Each member keeps its offsets in a file of its own.

python examples/broadcast.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dledger_client import Admin, Producer, PushConsumer

TOPIC = "example-announcements"
GROUP = "example-listeners"


async def main(name_server: str) -> None:
    """Give the first message to two members; one of them, started again, continues with the second message."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with Producer(name_server) as producer:
        with TemporaryDirectory() as folder:
            await producer.send(TOPIC, b"first")
            for member in ("one", "two", "one"):
                await listen(name_server, member, Path(folder, f"{member}.json"))
                await producer.send(TOPIC, b"second")


async def listen(name_server: str, member: str, offset_file: Path) -> None:
    """Print the next message of a member."""
    async with PushConsumer(name_server, GROUP, TOPIC, broadcast=True, offset_file=offset_file) as consumer:
        async for message in consumer:
            print(f"{member}: {message.body.decode()}")
            message.ack()
            break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
