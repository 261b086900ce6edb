"""Makes Spark find the data source by itself: it imports every `pyspark_*` module and registers its `DefaultSource`."""

from __future__ import annotations

from dledger_spark.source import DledgerDataSource as DefaultSource

__all__ = ["DefaultSource"]
