"""Spark's access to the messages: the data source `dledger` for batch and streaming reads and writes.

Start with `source` (the classes that Spark calls), `options` (the users' options) and `schema` (the rows). Reading goes
from the planner to partitions to tasks. `planning` and `streaming` run beside the driver and ask the cluster.
`segments` and `queues` run in tasks. Modules of tasks import only the standard library and pyarrow, because executors
may have nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("dledger")` with a session.

    Does nothing if Spark has the source already, from an earlier call or because it found the installed package itself.
    Spark would warn that one source replaced another.
    """
    from .source import DledgerDataSource

    java = getattr(spark, "_jsparkSession", None)  # Spark's Python API does not say which sources there are
    if java is None or not java.sessionState().dataSourceManager().dataSourceExists(DledgerDataSource.name()):
        spark.dataSource.register(DledgerDataSource)
