"""Inputs of jobs: topics through the data source, asked for by keyword instead of option by option."""

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
from ..options import ReadOptions, read_options
from ..plans import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnPhase: TypeAlias = Callable[[str], None]
"""Called with a few words whenever a job begins something that may take a while."""

UNPIN_TIMEOUT_S: Final = 5.0
"""How long a broker group is asked to give a pin up; if it does not answer, the pin's lease ends by itself."""

_logger = logging.getLogger(__name__)


def silent(phase: str) -> None:
    """Tell nobody."""


def topic_list(topics: str | Sequence[str]) -> list[str]:
    """Topics as `subscribe` has them, or as a sequence."""
    names = topics.split(",") if isinstance(topics, str) else topics
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


def source_options(namesrv: str, topics: Sequence[str], read_from: str) -> dict[str, str]:
    """The options that every read of these topics has."""
    return {"namesrv": namesrv, "subscribe": ",".join(topics), "readFrom": read_from}


def checked_options(options: Mapping[str, str]) -> ReadOptions:
    """Options for asking the cluster before a batch read. Raises `OptionError`."""
    return read_options(options, "batch")


@contextmanager
def pinned(options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The options of a batch read, with a pin that is given up at the end and not only when its lease is over.

    A read of queues has none, and gets its options as they are.
    """
    reading = checked_options(options)
    if reading.mode == "queues":
        yield {**options}
        return
    name = f"spark-{uuid.uuid4()}"
    try:
        yield {**options, "pin": name}
    finally:
        _give_up(name, replace(reading, read_timeout_s=UNPIN_TIMEOUT_S))


def _give_up(pin: str, options: ReadOptions) -> None:
    with closing(Cluster(options)) as cluster:
        try:
            groups = cluster.groups()
        except SourceError as error:
            _warn_of_kept_pin(pin, error)
            return
        for group in groups:
            release_pin(cluster, group, pin)


def release_pin(cluster: Cluster, group: str, pin: str) -> None:
    """Give a broker group's pin up; if it does not answer, that is logged, and the pin's lease ends by itself."""
    try:
        cluster.unpin(group, pin)
    except SourceError as error:
        _warn_of_kept_pin(pin, error)


def _warn_of_kept_pin(pin: str, error: SourceError) -> None:
    _logger.warning("event=pin_kept pin=%s consequence='kept until its lease ends' error=%r", pin, error)


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A batch read with these options."""
    register(spark)
    return spark.read.format("dledger").options(**options).load()


def stored_between(messages: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """The messages that were stored in `[from_ms, to_ms)`, ms since 1970; None is no limit."""
    from pyspark.sql import functions as f

    if from_ms is not None:
        messages = messages.where(f.col("timestamp") >= f.timestamp_millis(f.lit(from_ms)))
    if to_ms is not None:
        messages = messages.where(f.col("timestamp") < f.timestamp_millis(f.lit(to_ms)))
    return messages


def range_options(starts: Offsets, ends: Offsets) -> dict[str, str]:
    """The options that read exactly these queues between these offsets."""
    assigned: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(starts):
        assigned.setdefault(queue.topic, {}).setdefault(queue.group, []).append(queue.queue_id)
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(to_json(starts)),
        "endingOffsets": json.dumps(to_json(ends)),
    }
