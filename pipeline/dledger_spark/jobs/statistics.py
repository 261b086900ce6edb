"""`stats`: what goes through topics, minute by minute; which keys are heavy, and who produces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..options import BadRecords
from ..schema import CORRUPT_RECORD
from .inputs import (
    OnPhase,
    bad_records_option,
    columns_option,
    load,
    pinned,
    silent,
    source_options,
    stored_between,
    topic_list,
    with_corrupt_record,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

COLUMNS: Final = ("value", "topic", "timestamp", "keys", "born_timestamp", "born_host")
"""The columns that are needed, in any order and among others."""

TOP: Final = 20
MAX_MINUTES: Final = 100_000
_QUANTILE_ACCURACY: Final = 1_000


@dataclass(frozen=True, slots=True)
class MinuteStats:
    """One topic in the minute of store times that begins at `minute_ms` (since 1970).

    Sizes are those of bodies in bytes; a body that cannot be decoded counts as it is stored. The delay in ms is the
    time from a message's birth at the producer to its storage, by the clocks of both. It is None if no birth is known.
    Quantiles are approximate: their rank is off by at most 0.1 %.
    """

    topic: str
    minute_ms: int
    messages: int
    size_bytes: int
    size_p50: int
    size_p90: int
    size_p99: int
    size_max: int
    delay_p50_ms: int | None
    delay_p99_ms: int | None
    delay_max_ms: int | None


@dataclass(frozen=True, slots=True)
class KeyStats:
    """A key and the messages that have it among theirs."""

    topic: str
    key: str
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A producer's host and what came from it."""

    topic: str
    born_host: str
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StatsResult:
    """Result of `stats`: minutes ascending, keys and producers by falling number of messages.

    The bodies of `bad_bodies` messages could not be decoded, `unknown_births` have no `born_timestamp`.
    """

    messages: int
    size_bytes: int
    minutes: list[MinuteStats]
    keys: list[KeyStats]
    producers: list[ProducerStats]
    bad_bodies: int = 0
    unknown_births: int = 0


def stats(
    spark: SparkSession,
    *,
    namesrv: str,
    topics: str | Sequence[str],
    from_ms: int | None = None,
    to_ms: int | None = None,
    read_from: str = "follower",
    top: int = TOP,
    bad_records: BadRecords = "PERMISSIVE",
    on_phase: OnPhase = silent,
) -> StatsResult:
    """Return statistics of all messages of topics, or of the messages stored in `[from_ms, to_ms)`. Raises
    `SourceError`.

    Messages whose bodies cannot be decoded count with the raw bodies' sizes (`bad_records` = `PERMISSIVE`), are left
    out (`DROPMALFORMED`) or fail the job (`FAILFAST`).
    """
    options = source_options(namesrv, topic_list(topics), read_from) | bad_records_option(bad_records)
    with pinned(options | columns_option((*COLUMNS, CORRUPT_RECORD), bad_records)) as pinned_options:
        messages = stored_between(load(spark, pinned_options), from_ms, to_ms)
        return message_stats(messages, top=top, bad_records=bad_records, on_phase=on_phase)


def message_stats(
    messages: DataFrame, *, top: int = TOP, bad_records: BadRecords = "PERMISSIVE", on_phase: OnPhase = silent
) -> StatsResult:
    """Return the statistics of any frame that has `COLUMNS`, for instance `read_archive(spark, path)`.

    The messages are read once; the job's data on them (about 100 bytes each) spills to disk. The result has the first
    `MAX_MINUTES` rows of `minutes`, and `top` keys and producers.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    measured = with_corrupt_record(messages).select(
        "topic",
        (f.unix_millis("timestamp") - f.unix_millis("timestamp") % 60_000).alias("minute_ms"),
        f.coalesce(f.length("value"), f.length(CORRUPT_RECORD)).alias("size"),
        (f.unix_millis("timestamp") - f.unix_millis("born_timestamp")).alias("delay"),
        "keys",
        f.regexp_replace("born_host", r":\d+$", "").alias("born_host"),
        f.col(CORRUPT_RECORD).isNotNull().alias("is_bad"),
    )
    measured.persist(StorageLevel.MEMORY_AND_DISK)
    facts = measured.where(~f.col("is_bad")) if bad_records == "DROPMALFORMED" else measured
    try:
        on_phase("reading messages")
        bad_bodies = measured.where("is_bad").count()
        sums = (f.count("*"), f.coalesce(f.sum("size"), f.lit(0)), f.count_if(f.col("delay").isNull()))
        messages_total, size_total, unknown_births = facts.agg(*sums).collect()[0]
        on_phase("counting by minute")
        minutes = [MinuteStats(*row) for row in _count_by_minute(facts).limit(MAX_MINUTES).collect()]
        on_phase("counting by key")
        words = f.array_distinct(f.array_remove(f.split("keys", " "), ""))
        by_key = facts.where("keys is not null").withColumn("key", f.explode(words))
        keys = [KeyStats(*row) for row in _find_heaviest(by_key, "key", top)]
        on_phase("counting by producer")
        producers = [ProducerStats(*row) for row in _find_heaviest(facts, "born_host", top)]
    finally:
        measured.unpersist()
    return StatsResult(messages_total, size_total, minutes, keys, producers, bad_bodies, unknown_births)


def _count_by_minute(facts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    def quantile(column: str, share: float) -> Column:
        return f.percentile_approx(column, share, _QUANTILE_ACCURACY)

    statistics = facts.groupBy("topic", "minute_ms").agg(
        f.count("*"),
        f.sum("size"),
        quantile("size", 0.5),
        quantile("size", 0.9),
        quantile("size", 0.99),
        f.max("size"),
        quantile("delay", 0.5),
        quantile("delay", 0.99),
        f.max("delay"),
    )
    return statistics.orderBy("topic", "minute_ms")


def _find_heaviest(facts: DataFrame, column: str, top: int) -> Sequence[Row]:
    from pyspark.sql import functions as f

    counts = facts.groupBy("topic", column).agg(f.count("*").alias("messages"), f.sum("size").alias("size_bytes"))
    return counts.orderBy(f.desc("messages"), f.desc("size_bytes"), "topic", column).limit(top).collect()
