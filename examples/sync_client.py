"""Send, consume and look around without asyncio.

python examples/sync_client.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from dledger_client import SyncAdmin, SyncConsumer, SyncProducer

TOPIC = "example-blocking"
GROUP = "example-blocking-readers"
COUNT = 10


def main(name_server: str) -> None:
    """Create a topic, send, consume, and see what is left."""
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=2)

    with SyncProducer(name_server) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"message %d" % number, key=f"key-{number}")

    with SyncConsumer(name_server, GROUP, TOPIC) as consumer:
        for received, message in enumerate(consumer, start=1):
            print(f"{message.key}: {message.body.decode()}")
            if received == COUNT:
                message.ack()
                break

    with SyncAdmin(name_server) as admin:
        lag = sum(status.lag for status in admin.offsets(GROUP, TOPIC))
        print(f"{GROUP} has {lag} messages left to read")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
