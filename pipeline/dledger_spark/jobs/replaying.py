"""`replay`: messages of an archive, or of a time range of topics, into a topic: no faster than told, none twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dledger_client import ClientError, NoRouteError, SyncAdmin
from dledger_remoting.properties import RESERVED_NAMES

from .. import register
from ..signing import client_credentials, client_tls
from .archives import read_archive
from .errors import JobError
from .inputs import OnPhase, load, pinned, silent, source_options, stored_between, topic_list

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

TASKS: Final = 8


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`rows` were acknowledged by `topic` under the identity `job_id`."""

    topic: str
    job_id: str
    rows: int
    seconds: float


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
    on_phase: OnPhase = silent,
) -> ReplayResult:
    """Send messages again, to another topic or another cluster (`to_namesrv`).

    They come from `archive` or from `topics`: either, or both to take only these topics of an archive; only those
    stored in `[from_ms, to_ms)` and those for which the SQL condition `where` holds. Body, key, tags and the
    application's properties are sent; `same_queues` sends each to the queue of the number that it came from. At most
    `rate` messages a second are sent by all tasks together, but one by each.

    A repeated run with the same `job_id`, input and `tasks` within the broker's window for repeated sends stores
    nothing twice: rows go to tasks by the queue that they come from and in the order of its offsets, however their
    files or slices are cut. Later runs store them again. Raises `JobError` and `SourceError`s, the former before
    anything is sent if there are no queues to be the `same_queues`.
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
            messages = load(spark, pins.enter_context(pinned(source_options(namesrv, names, read_from))))
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
            options["maxRowsPerSecond"] = str(max(1, rate // _at_once(spark.sparkContext, tasks)))
        counted = Observation()
        outgoing = _outgoing(messages, tasks, same_queues).observe(counted, f.count(f.lit(1)).alias("rows"))
        on_phase(f"sending to {to_topic}")
        began = time.monotonic()
        outgoing.write.format("dledger").options(**options).mode("append").save()
        return ReplayResult(to_topic, job_id, counted.get["rows"], round(time.monotonic() - began, 3))


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


def _at_once(context: SparkContext, tasks: int) -> int:
    """How many of the tasks run at a time, at the most; with executors that come and go that is all of them."""
    conf = context.getConf()
    if conf.contains("spark.default.parallelism") or conf.get("spark.dynamicAllocation.enabled") == "true":
        return tasks
    return max(1, min(tasks, context.defaultParallelism))


def _outgoing(messages: DataFrame, tasks: int, same_queues: bool) -> DataFrame:
    """What is sent of every message; which task gets it, and in which order, depends on the messages alone."""
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
        *(["partition"] if same_queues else []),
    ]
    return ordered.select(*columns)
