"""One Spark session and one cluster for all tests of this folder, which need two cores."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from dledger_client.testing import LocalCluster
from dledger_spark.session import spark_session

collect_ignore = [] if os.environ.get("SPARK_CLUSTER") else ["cluster"]
"""`make test-spark-cluster` sets the variable."""


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
            "spark.log.level": "ERROR",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": tmp_path_factory.mktemp("events").as_uri(),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stopTimeout": "30s",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    """Start two groups of three nodes. A test that stops a node starts it again. Each module makes its own topics."""
    # A busy machine may take longer than the default two minutes to repeat a job.
    with LocalCluster(groups=2, config="idempotent_window_ms = 3600000\n") as started:
        yield started
