"""Let a group read messages again, skip messages, or continue at the offsets of another group.

python examples/resets.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from dledger_client import SyncAdmin, SyncConsumer, SyncProducer

TOPIC = "example-tally-marks"
GROUP = "example-counts"
OTHER = "example-counted-twice"
READ_SECONDS = 30


def main(name_server: str) -> None:
    """Reset a group with a running member, then one without."""
    with SyncAdmin(name_server) as admin, SyncProducer(name_server) as producer:
        admin.create_topic(TOPIC, queues=1)
        for body in (b"one", b"two"):
            producer.send(TOPIC, body)
        with SyncConsumer(name_server, GROUP, TOPIC, start_from="first") as consumer:
            print(f"read {read(consumer, 2)}")
            admin.reset_offsets(GROUP, TOPIC, "first")
            print(f"read again {read(consumer, 2)}")
        producer.send(TOPIC, b"three")
        admin.reset_offsets(GROUP, TOPIC, "last")
        producer.send(TOPIC, b"four")
        with SyncConsumer(name_server, GROUP, TOPIC) as consumer:
            print(f"skipped three, read {read(consumer, 1)}")
        admin.clone_offsets(GROUP, OTHER, topic=TOPIC)
        producer.send(TOPIC, b"five")
        with SyncConsumer(name_server, OTHER, TOPIC) as consumer:
            print(f"another group went on with {read(consumer, 1)}")


def read(consumer: SyncConsumer, count: int) -> str:
    """Return the next messages, acknowledged."""
    bodies: list[str] = []
    while len(bodies) < count:
        for message in consumer.receive(timeout=READ_SECONDS):
            bodies.append(message.body.decode())
            message.ack()
    return ", ".join(bodies)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
