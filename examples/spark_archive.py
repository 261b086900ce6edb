"""Keep a topic as Parquet, add to it later, and look into it without the brokers.

python examples/spark_archive.py 127.0.0.1:9876 FOLDER
"""

from __future__ import annotations

import sys
import tempfile

from dledger_client import Message, SyncAdmin, SyncProducer
from dledger_spark.jobs import archive, compact, message_stats, read_archive
from dledger_spark.session import spark_session

TOPIC = "example-archive"
COUNT = 500


def main(name_server: str, path: str) -> None:
    """Archive three times, with messages sent before each run, and compact the small files."""
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=2)
    spark = spark_session("local[2]")
    for _ in range(3):
        with SyncProducer(name_server) as producer:
            producer.send_batch(
                TOPIC, [Message(b"%d" % number, key="often" if number % 2 else f"k{number}") for number in range(COUNT)]
            )
        result = archive(spark, namesrv=name_server, topics=TOPIC, path=path)
        print(f"added {result.rows}, there are {result.total_rows}")
    compacted = compact(spark, path=path)
    print(f"the same {compacted.rows} in version {compacted.version}")
    heaviest = message_stats(read_archive(spark, path)).keys[0]
    print(f"{heaviest.key} has {heaviest.messages} messages")
    spark.stop()


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876",
        sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="archive-"),
    )
