"""Count and sum the messages of a topic, read from followers.

python examples/spark_batch.py 127.0.0.1:9876
"""

from __future__ import annotations

import sys

from dledger_client import Message, SyncAdmin, SyncProducer
from dledger_spark.session import spark_session

TOPIC = "example-sales"
COUNT = 1000


def main(name_server: str) -> None:
    """Fill a topic, then ask Spark about it."""
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=4)
    with SyncProducer(name_server) as producer:
        sales = [Message(b"%d" % number, tags="large" if number >= 900 else "small") for number in range(COUNT)]
        producer.send_batch(TOPIC, sales)
    spark = spark_session("local[2]")
    sales_table = spark.read.format("dledger").option("namesrv", name_server).option("subscribe", TOPIC).load()
    for row in sales_table.groupBy("tags").count().orderBy("tags").collect():
        print(f"{row.tags}: {row[1]}")
    total = sales_table.selectExpr("sum(CAST(CAST(value AS STRING) AS BIGINT)) AS total").first()
    print(f"sum: {total.total if total is not None else 0}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
