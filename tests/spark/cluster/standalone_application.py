"""Application for `spark-submit` that prints count and hash of the values of a topic.

The interpreter does not have the package: driver and workers only have the shipped one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from pyspark.sql import Row, SparkSession

from dledger_spark import register


def digests(rows: Iterator[Row], progress: str) -> Iterator[bytes]:
    """Yield the hash of every value. The first row of all leaves a mark."""
    for row in rows:
        if progress and not Path(progress).exists():
            Path(progress).touch()
        yield sha256(bytes(row.value)).digest()


def main(name_server: str, topic: str, mode: str, progress: str) -> None:
    """Read a topic in the given mode."""
    import dledger_spark

    if ".zip" not in str(dledger_spark.__file__):
        raise SystemExit(f"not the shipped package: {dledger_spark.__file__}")
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    options = {"namesrv": name_server, "subscribe": topic, "columns": "value", "mode": mode}
    frame = spark.read.format("dledger").options(**options, minPartitions="24").load()
    found = frame.rdd.mapPartitions(lambda rows: digests(rows, progress)).collect()
    print("RESULT", json.dumps({"count": len(found), "digest": sha256(b"".join(sorted(found))).hexdigest()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
