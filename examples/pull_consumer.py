"""Read queues at one's own pace: assign, seek, poll, commit.

python examples/pull_consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from dledger_client import SyncAdmin, SyncProducer, SyncPullConsumer

TOPIC = "example-readings"
GROUP = "example-analysts"


def main(name_server: str) -> None:
    """Read everything, commit half of it, and read the last reading once more."""
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=1)
    with SyncProducer(name_server) as producer:
        producer.send_batch(TOPIC, [f"reading {number}".encode() for number in range(4)])
    with SyncPullConsumer(name_server, GROUP) as consumer:
        [queue] = consumer.queues(TOPIC)
        consumer.assign([queue])
        consumer.seek_to_begin()
        print([message.body.decode() for message in consumer.poll(2)])
        consumer.commit()
        print(f"committed: {consumer.committed(queue)}")
        print([message.body.decode() for message in consumer.poll(2)])
        consumer.seek(queue, 3)
        print([message.body.decode() for message in consumer.poll(2)])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
