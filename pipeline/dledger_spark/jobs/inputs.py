"""Inputs of jobs: topics through the data source, with keywords instead of options."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from .. import register
from ..errors import SourceError
from ..offsets import Offsets, to_json
from ..options import BadRecords, ReadOptions, read_options
from ..pins import release_pin
from ..planning import pin_queues
from ..plans import Cluster
from ..schema import CORRUPT_RECORD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnPhase: TypeAlias = Callable[[str], None]
"""Called with a few words whenever a job begins something that may take a while."""

UNPIN_TIMEOUT_S: Final = 5.0
"""Time limit in seconds for releasing a pin at one broker group. Without an answer the lease ends by itself."""

_logger = logging.getLogger(__name__)


def silent(phase: str) -> None:
    """Report no phase."""


def topic_list(topics: str | Sequence[str]) -> list[str]:
    """Return the topics of a comma-separated list, or of a sequence."""
    names = topics.split(",") if isinstance(topics, str) else topics
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


def source_options(namesrv: str, topics: Sequence[str], read_from: str) -> dict[str, str]:
    """Return the options that every read of these topics has."""
    return {"namesrv": namesrv, "subscribe": ",".join(topics), "readFrom": read_from}


def checked_options(options: Mapping[str, str]) -> ReadOptions:
    """Return options for asking the cluster before a batch read. Raises `OptionError`."""
    return read_options(options, "batch")


@contextmanager
def pinned(options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Give the options of a batch read whose pin is released at the end of the context, before its lease ends.

    A read of queues renews no pin, so it is pinned here, for an hour at most.
    """
    checked = checked_options(options)
    name = f"spark-{uuid.uuid4()}"
    try:
        if checked.mode == "queues":
            pin_queues(checked, name)
        yield {**options} if checked.mode == "queues" else {**options, "pin": name}
    finally:
        _release_pins(name, replace(checked, read_timeout_s=UNPIN_TIMEOUT_S))


def _release_pins(pin: str, options: ReadOptions) -> None:
    with closing(Cluster(options)) as cluster:
        try:
            groups = cluster.groups()
        except SourceError as error:
            _logger.warning("event=pin_kept pin=%s consequence='kept until its lease ends' error=%r", pin, error)
            return
        for group in groups:
            release_pin(cluster, group, pin)


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return a batch read with these options."""
    register(spark)
    return spark.read.format("dledger").options(**options).load()


def bad_records_option(bad_records: BadRecords) -> dict[str, str]:
    """Return the option of a job's read. A job drops bad records by itself, so that it can count them."""
    return {"badRecords": "FAILFAST" if bad_records == "FAILFAST" else "PERMISSIVE"}


def columns_option(columns: Sequence[str], bad_records: BadRecords) -> dict[str, str]:
    """Return the option for these columns, and the column of bad records only if the read has it."""
    chosen = [name for name in columns if name != CORRUPT_RECORD or bad_records != "FAILFAST"]
    return {"columns": ",".join(chosen)}


def with_corrupt_record(messages: DataFrame) -> DataFrame:
    """Return the messages with the column of bad records, which is null if the read had none."""
    from pyspark.sql import functions as f

    if CORRUPT_RECORD in messages.columns:
        return messages
    return messages.withColumn(CORRUPT_RECORD, f.lit(None).cast("binary"))


def stored_between(messages: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """Return the messages that were stored in `[from_ms, to_ms)`, ms since 1970; None is no limit."""
    from pyspark.sql import functions as f

    if from_ms is not None:
        messages = messages.where(f.col("timestamp") >= f.timestamp_millis(f.lit(from_ms)))
    if to_ms is not None:
        messages = messages.where(f.col("timestamp") < f.timestamp_millis(f.lit(to_ms)))
    return messages


def range_options(starts: Offsets, ends: Offsets) -> dict[str, str]:
    """Return the options that read exactly these queues between these offsets."""
    assigned: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(starts):
        assigned.setdefault(queue.topic, {}).setdefault(queue.group, []).append(queue.queue_id)
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(to_json(starts)),
        "endingOffsets": json.dumps(to_json(ends)),
    }
