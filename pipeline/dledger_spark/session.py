"""A Spark session that knows the data source, on this machine or on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import register
from .java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(
    master: str | None = "local[*]", *, name: str = "dledger", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one, with `dledger` registered.

    A local master stays on the loopback interface and has no web interface; `master` None leaves it to `spark-submit`.
    `config` is laid over everything. Python workers run this interpreter. Raises `SourceError` if there is no Java.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, str] = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger"
        home = java_home(cache)
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
