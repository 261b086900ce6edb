"""A Spark session for one command, and its errors as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger_admin.errors import require

from ..errors import AdminError
from .client_calls import require_name_server
from .spark_progress import job_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_CONFIGURATION: Final = Path(__file__).resolve().with_name("spark_log4j2.properties")


@contextmanager
def job(
    name: str, namesrv: str, master: str, settings: tuple[str, ...]
) -> Iterator[tuple[SparkSession, Callable[[str], None]]]:
    """The session of the running program, else a new one for this job; and what is told of the job's phases.

    `settings` are Spark's, as KEY=VALUE. Raises `AdminError`, also for what the job fails with.
    """
    config = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"}
    for setting in settings:
        key, _, value = setting.partition("=")
        config[key] = value
    with errors_in_one_line(namesrv):
        from pyspark.sql import SparkSession

        from dledger_spark.session import spark_session

        is_ours = SparkSession.getActiveSession() is None
        spark = spark_session(master, name=f"dledger spark {name}", config=config)
        try:
            with job_progress(spark, name) as on_phase:
                yield spark, on_phase
        finally:
            if is_ours:
                spark.stop()


@contextmanager
def errors_in_one_line(namesrv: str) -> Iterator[None]:
    """Raise `AdminError` for the errors of jobs and of Spark; before that for a missing extra, or no name server."""
    require("spark", "pyspark", "pyarrow")
    require_name_server(namesrv)
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it ships no types
    from pyspark.errors import PySparkException

    from dledger_spark.errors import SourceError

    try:
        yield
    except SourceError as error:
        raise AdminError(str(error)) from error
    except PySparkException as error:
        raise AdminError(cause(str(error))) from error
    except Py4JJavaError as error:
        raise AdminError(str(error.java_exception.toString())) from error


def cause(text: str) -> str:
    """Return the cause of a failure: the end of the Python traceback in Spark's text, else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error_lines = [line for line in lines if line.startswith(("dledger_spark.", "dledger_client."))]
    return error_lines[-1].partition(": ")[2] if error_lines else lines[0] if lines else "Spark failed"
