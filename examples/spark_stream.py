"""Copy messages of a topic into another one, exactly once, and show the stream's lag as that of a consumer group.

python examples/spark_stream.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys
import tempfile

from dledger_client import SyncAdmin, SyncProducer
from dledger_spark.session import spark_session

SOURCE = "example-events-in"
TARGET = "example-events-out"
COUNT = 100


def main(name_server: str) -> None:
    """Fill a topic, copy it with a stream that ends, and look at both ends."""
    with SyncAdmin(name_server) as admin:
        admin.create_topic(SOURCE, queues=2)
        admin.create_topic(TARGET, queues=2)
    with SyncProducer(name_server) as producer:
        producer.send_batch(SOURCE, [b"event %d" % number for number in range(COUNT)])
    spark = spark_session("local[2]")
    events = (
        spark.readStream.format("dledger")
        .option("namesrv", name_server)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("groupId", "example-stream")
        .load()
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            events.selectExpr("upper(CAST(value AS STRING)) AS value")
            .writeStream.format("dledger")
            .option("namesrv", name_server)
            .option("topic", TARGET)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    copies = spark.read.format("dledger").option("namesrv", name_server).option("subscribe", TARGET).load()
    copied = copies.where("CAST(value AS STRING) LIKE 'EVENT %'").count()
    print(f"copied: {copied}")
    with SyncAdmin(name_server) as admin:
        print(f"lag: {sum(status.lag for status in admin.offsets('example-stream', SOURCE))}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
