"""Limit how much is read ahead of slow work, and pause queues for a while.

python examples/flow_control.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from dledger_client import ReadAhead, ReceivedMessage, SyncAdmin, SyncConsumer, SyncProducer

TOPIC = "example-images"
GROUP = "example-painters"
COUNT = 40


def main(name_server: str) -> None:
    """Read ten images of 10 KB ahead; the others wait at the broker until some of them are finished."""
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=1)
    with SyncProducer(name_server) as producer:
        producer.send_batch(TOPIC, [bytes(10_000)] * COUNT)
    read_ahead = ReadAhead(max_outstanding_bytes=100_000, pull_batch_size=5)
    with SyncConsumer(name_server, GROUP, TOPIC, read_ahead=read_ahead) as consumer:
        painted = 0
        while painted < COUNT:
            unfinished: list[ReceivedMessage] = []
            while len(unfinished) < 10:
                unfinished += consumer.receive(10)
            print(f"{len(unfinished)} images are in work, no more are read: {consumer.receive(timeout=0.2) == []}")
            for message in unfinished:
                message.ack()
            painted += len(unfinished)
        print(f"stopped by the limit of bytes: {consumer.flow_stops['bytes'] > 0}")
        consumer.pause()
        print(f"paused: {', '.join(str(queue) for queue in consumer.paused if queue.topic == TOPIC)}")
        consumer.resume()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
