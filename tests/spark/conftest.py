"""One Spark session and one cluster for all tests of this folder; they run where there are two cores for both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from dledger_client.testing import LocalCluster
from dledger_spark.session import spark_session


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stopTimeout": "30s",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    """Two groups of three nodes. Whoever stops a node starts it again; topics are of the module that makes them."""
    with LocalCluster(groups=2) as started:
        yield started
