"""`stats`: what goes through topics, minute by minute; which keys are heavy, and who produces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .inputs import OnPhase, load, pinned, silent, source_options, stored_between, topic_list

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

    Sizes are those of bodies in bytes; the delay is from a message's birth at the producer to its storage, by the
    clocks of both, in ms. Quantiles are approximate: their rank is off by at most 0.1 %.
    """

    topic: str
    minute_ms: int
    messages: int
    size_bytes: int
    size_p50: int
    size_p90: int
    size_p99: int
    size_max: int
    delay_p50_ms: int
    delay_p99_ms: int
    delay_max_ms: int


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
    """What `stats` found; minutes ascending, keys and producers by falling number of messages."""

    messages: int
    size_bytes: int
    minutes: list[MinuteStats]
    keys: list[KeyStats]
    producers: list[ProducerStats]


def stats(
    spark: SparkSession,
    *,
    namesrv: str,
    topics: str | Sequence[str],
    from_ms: int | None = None,
    to_ms: int | None = None,
    read_from: str = "follower",
    top: int = TOP,
    on_phase: OnPhase = silent,
) -> StatsResult:
    """Statistics of what topics hold, or of what was stored in `[from_ms, to_ms)`. Raises `SourceError`."""
    options = source_options(namesrv, topic_list(topics), read_from) | {"columns": ",".join(COLUMNS)}
    with pinned(options) as reading:
        return message_stats(stored_between(load(spark, reading), from_ms, to_ms), top=top, on_phase=on_phase)


def message_stats(messages: DataFrame, *, top: int = TOP, on_phase: OnPhase = silent) -> StatsResult:
    """The same for any frame that has `COLUMNS`, for instance `read_archive(spark, path)`.

    The messages are read once; what is kept of them meanwhile (about 100 bytes each) spills to disk. At most
    `MAX_MINUTES` rows of `minutes` are given, the first ones, and `top` keys and producers.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    facts = messages.select(
        "topic",
        (f.unix_millis("timestamp") - f.unix_millis("timestamp") % 60_000).alias("minute_ms"),
        f.length("value").alias("size"),
        (f.unix_millis("timestamp") - f.unix_millis("born_timestamp")).alias("delay"),
        "keys",
        f.regexp_replace("born_host", r":\d+$", "").alias("born_host"),
    ).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        on_phase("reading messages")
        totals = facts.agg(f.count("*").alias("messages"), f.sum("size").alias("size_bytes")).head()
        on_phase("counting by minute")
        minutes = [MinuteStats(*row) for row in _minutes(facts).limit(MAX_MINUTES).collect()]
        on_phase("counting by key")
        words = f.array_distinct(f.array_remove(f.split("keys", " "), ""))
        by_key = facts.where("keys is not null").withColumn("key", f.explode(words))
        keys = [KeyStats(*row) for row in _heaviest(by_key, "key", top)]
        on_phase("counting by producer")
        producers = [ProducerStats(*row) for row in _heaviest(facts, "born_host", top)]
    finally:
        facts.unpersist()
    messages_total, size_total = (0, 0) if totals is None else (totals["messages"], totals["size_bytes"] or 0)
    return StatsResult(messages_total, size_total, minutes, keys, producers)


def _minutes(facts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    def quantile(column: str, share: float) -> Column:
        return f.percentile_approx(column, share, _QUANTILE_ACCURACY)

    counted = facts.groupBy("topic", "minute_ms").agg(
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
    return counted.orderBy("topic", "minute_ms")


def _heaviest(facts: DataFrame, column: str, top: int) -> Sequence[Row]:
    from pyspark.sql import functions as f

    counted = facts.groupBy("topic", column).agg(f.count("*").alias("messages"), f.sum("size").alias("size_bytes"))
    return counted.orderBy(f.desc("messages"), f.desc("size_bytes"), "topic", column).limit(top).collect()
