"""A Spark session that knows the data source, on this machine or on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import register
from .java import java_home
from .pins import Application, new_application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(
    master: str | None = "local[*]", *, name: str = "dledger", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running or a new session, with `dledger` registered; the end of a new one gives its pins up.

    A local master stays on the loopback interface and has no web interface; `master` None leaves it to `spark-submit`.
    `config` is laid over everything. Python workers run this interpreter. Raises `SourceError` if there is no Java.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    application = new_application() if SparkSession.getActiveSession() is None else None
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
    if application is not None:
        _release_at_the_end(spark, application)
    return spark


def _release_at_the_end(spark: SparkSession, application: Application) -> None:
    """Release the pins of a session's reads at its end."""
    stop = spark.stop

    def stop_and_release() -> None:
        stop()
        application.release()

    spark.stop = stop_and_release  # type: ignore[method-assign]
