"""Spark's access to the messages: the data source `dledger` for batch and streaming reads and writes.

Start with `source` (what Spark calls), `options` (what users may say) and `schema` (what they get). Reading goes
planner → partitions → tasks: `planning` and `streaming` run beside the driver and ask the cluster, `segments` and
`queues` run in tasks. What runs in tasks imports the standard library and pyarrow only, because executors may have
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("dledger")` known to a session; Spark finds an installed package by itself."""
    from .source import DledgerDataSource

    spark.dataSource.register(DledgerDataSource)
