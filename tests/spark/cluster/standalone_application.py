"""Application for `spark-submit`: it prints count and hash of the values of a topic.

The interpreter does not have the package: only the shipped one is there, in the driver and in every worker.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from pyspark.sql import Row, SparkSession

from dledger_spark import register


def digests(rows: Iterator[Row], progress: str) -> Iterator[bytes]:
    """The hash of every value; the first row of all leaves a mark."""
    for row in rows:
        if progress and not Path(progress).exists():
            Path(progress).touch()
        yield sha256(bytes(row.value)).digest()


def main(kind: str, name_server: str, topic: str, mode: str, progress: str) -> None:
    """Read a topic as told."""
    import dledger_spark

    if ".zip" not in str(dledger_spark.__file__):
        raise SystemExit(f"not the shipped package: {dledger_spark.__file__}")
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    options = {"namesrv": name_server, "subscribe": topic, "columns": "value", "mode": mode}
    if kind == "stream":
        stream = spark.readStream.format("dledger").options(**options).load()
        with tempfile.TemporaryDirectory() as folder:
            sink = stream.writeStream.format("noop").option("checkpointLocation", folder)
            sink.trigger(availableNow=True).start().awaitTermination()
        return
    frame = spark.read.format("dledger").options(**options, minPartitions="24").load()
    found = frame.rdd.mapPartitions(lambda rows: digests(rows, progress)).collect()
    print("RESULT", json.dumps({"count": len(found), "digest": sha256(b"".join(sorted(found))).hexdigest()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
