"""Program that copies a topic with two streams, into Parquet and into another topic, and ends once all is copied.

`killed_stream.py NAMESRV SOURCE MESSAGES_PER_BATCH FOLDER TOPIC`. The folder gets the rows, and both checkpoints.
"""

from __future__ import annotations

import sys

from pyspark.sql.streaming import DataStreamWriter

from dledger_spark.session import spark_session


def main(namesrv: str, source: str, per_batch: str, folder: str, topic: str) -> None:
    """Run the streams to their ends."""
    # A task whose Python worker is killed runs again, up to four times.
    config = {"spark.log.level": "ERROR", "spark.sql.streaming.minBatchesToRetain": "1000"}
    spark = spark_session("local[2,4]", config=config)

    def copy(checkpoint: str) -> DataStreamWriter:
        stream = spark.readStream.format("dledger").option("namesrv", namesrv).option("subscribe", source)
        stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch)
        rows = stream.load().selectExpr("value", "topic AS source_topic", "broker_group", "queue_id", "offset")
        return rows.writeStream.option("checkpointLocation", f"{folder}/{checkpoint}").trigger(availableNow=True)

    queries = [
        copy("checkpoint-parquet").format("parquet").start(f"{folder}/rows"),
        copy("checkpoint-topic").format("dledger").option("namesrv", namesrv).option("topic", topic).start(),
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
