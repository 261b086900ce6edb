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
    """Make `format("dledger")` known to a session.

    Without effect where Spark has it already, from an earlier call or because it finds an installed package by itself:
    it would warn that one source replaced another.
    """
    from .source import DledgerDataSource

    java = getattr(spark, "_jsparkSession", None)  # Spark's Python API does not say which sources there are
    if java is None or not java.sessionState().dataSourceManager().dataSourceExists(DledgerDataSource.name()):
        spark.dataSource.register(DledgerDataSource)
