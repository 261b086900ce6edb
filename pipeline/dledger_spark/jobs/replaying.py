"""`replay`: messages of an archive, or of a time range of topics, into a topic: at a limited rate, none twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dledger_client import ClientError, NoRouteError, SyncAdmin
from dledger_remoting.properties import RESERVED_NAMES

from .. import register
from ..errors import JobError
from ..options import BadRecords
from ..schema import CORRUPT_RECORD, SOURCE_TOPIC
from ..signing import client_credentials, client_tls
from .archives import read_archive
from .inputs import (
    OnPhase,
    bad_records_option,
    load,
    pinned,
    silent,
    source_options,
    stored_between,
    topic_list,
    with_corrupt_record,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

_logger = logging.getLogger(__name__)

TASKS: Final = 8


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay: brokers acknowledged `rows` messages of `topic` under the identity `job_id`.

    `bad_bodies` messages were left out, because their bodies cannot be decoded. `refused_tags` messages were left out,
    because clients refuse to send tags that no subscription could name.
    """

    topic: str
    job_id: str
    rows: int
    seconds: float
    bad_bodies: int = 0
    refused_tags: int = 0


def replay(
    spark: SparkSession,
    *,
    namesrv: str,
    to_topic: str,
    job_id: str,
    archive: str | None = None,
    topics: str | Sequence[str] = (),
    from_ms: int | None = None,
    to_ms: int | None = None,
    where: str | None = None,
    rate: int | None = None,
    same_queues: bool = False,
    tasks: int = TASKS,
    to_namesrv: str | None = None,
    read_from: str = "follower",
    bad_records: BadRecords = "PERMISSIVE",
    on_phase: OnPhase = silent,
) -> ReplayResult:
    """Send messages again, to another topic or another cluster (`to_namesrv`).

    They come from `archive` or from `topics`. With both, only these topics of the archive are taken. Only messages
    stored in `[from_ms, to_ms)` are sent, and only messages for which the SQL condition `where` holds.

    Body, key, tags and the application's properties are sent. `same_queues` sends each message to the queue with the
    number of its original queue. All tasks together send at most `rate` messages a second, but each task at least one.
    Messages whose bodies cannot be decoded are left out and counted, or fail the job (`bad_records` = `FAILFAST`).
    Messages whose tags clients refuse to send are always left out and counted. The log names the first of them.

    A repeated run with the same `job_id`, input and `tasks` stores nothing twice within the broker's window for
    repeated sends. Rows go to tasks by their original queue and in the order of its offsets, for any cut of files and
    slices. Later runs store the messages again. Raises `SourceError`s and `JobError`. With `same_queues`, it raises
    `JobError` before anything is sent if the topic does not exist.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    names = topic_list(topics)
    if archive is None and not names:
        raise JobError("nothing to replay: name an archive or topics")
    if archive is None and to_topic in names and to_namesrv in (None, namesrv):
        raise JobError(f"topic {to_topic} would be replayed into itself")
    if same_queues:
        _require_topic(to_namesrv or namesrv, to_topic)
    with ExitStack() as pins:
        if archive is None:
            options = source_options(namesrv, names, read_from) | bad_records_option(bad_records)
            messages = load(spark, pins.enter_context(pinned(options)))
        else:
            register(spark)
            messages = read_archive(spark, archive)
            if names:
                messages = messages.where(f.col("topic").isin(names))
        messages = stored_between(messages, from_ms, to_ms)
        if where is not None:
            messages = messages.where(where)
        options = {"namesrv": to_namesrv or namesrv, "topic": to_topic, "jobId": job_id}
        if rate is not None:
            options["maxRowsPerSecond"] = str(max(1, rate // _max_running_tasks(spark.sparkContext, tasks)))
        input_counts, output_counts = Observation(), Observation()
        is_bad = f.col(CORRUPT_RECORD).isNotNull()
        message_origin = f.struct("topic", "broker_group", "queue_id", "offset", "tags")
        refused = f.coalesce(_has_refused_tags(), f.lit(col=False))
        messages = with_corrupt_record(messages).observe(
            input_counts,
            f.count_if(is_bad).alias("bad"),
            f.count_if(refused).alias("refused"),
            f.min(f.when(refused, message_origin)).alias("first"),
        )
        if bad_records != "FAILFAST":
            messages = messages.where(~is_bad)
        messages = messages.where(~refused)
        outgoing = _select_outgoing(messages, tasks, same_queues).observe(
            output_counts, f.count(f.lit(1)).alias("rows")
        )
        on_phase(f"sending to {to_topic}")
        began = time.monotonic()
        outgoing.write.format("dledger").options(**options).mode("append").save()
        seconds = round(time.monotonic() - began, 3)
        if input_counts.get["refused"]:
            _logger.warning(
                "event=tags_refused messages=%d first=%s", input_counts.get["refused"], input_counts.get["first"]
            )
        return ReplayResult(
            to_topic, job_id, output_counts.get["rows"], seconds, input_counts.get["bad"], input_counts.get["refused"]
        )


def _require_topic(namesrv: str, topic: str) -> None:
    try:
        with SyncAdmin(namesrv, credentials=client_credentials(), tls=client_tls()) as admin:
            admin.topic_route(topic)
    except NoRouteError as error:
        raise JobError(
            f"topic {topic} does not exist, so it has no queues of the same numbers: create it first, with as many"
        ) from error
    except ClientError as error:
        raise JobError(str(error)) from error


def _has_refused_tags() -> Column:
    """Return a column that is true for tags that clients refuse, by `dledger_remoting.filters.tags.is_one_tag`."""
    from pyspark.sql import functions as f

    tags = f.col("tags")
    return (tags != "*") & (f.contains(tags, f.lit("||")) | tags.rlike("^[\\x00-\\x20]|[\\x00-\\x20]$"))


def _max_running_tasks(context: SparkContext, tasks: int) -> int:
    """Return the maximum number of tasks that run at a time: all of them if executors come and go."""
    conf = context.getConf()
    if conf.contains("spark.default.parallelism") or conf.get("spark.dynamicAllocation.enabled") == "true":
        return tasks
    return max(1, min(tasks, context.defaultParallelism))


def _select_outgoing(messages: DataFrame, tasks: int, same_queues: bool) -> DataFrame:
    """Return the columns to send of every message. Its task and its order depend on the messages and `tasks` alone."""
    from pyspark.sql import functions as f

    own = f.map_filter("properties", lambda name, _: ~name.isin(sorted(RESERVED_NAMES)))
    headers = f.transform(
        f.array_sort(f.map_entries(own)),
        lambda entry: f.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
    )
    spread = messages.repartition(tasks, "topic", "partition")
    ordered = spread.sortWithinPartitions("topic", "partition", "physical_offset")
    columns: list[Column | str] = [
        "key",
        "value",
        "tags",
        headers.alias("headers"),
        f.col("topic").alias(SOURCE_TOPIC),
        "broker_group",
        "queue_id",
        "offset",
        *(["partition"] if same_queues else []),
    ]
    return ordered.select(*columns)
