"""What jobs read: topics through the data source, asked for by keyword instead of option by option."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from .. import register
from ..offsets import Offsets, to_json
from ..options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnPhase: TypeAlias = Callable[[str], None]
"""Called with a few words whenever a job begins something that may take a while."""


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


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A batch read with these options."""
    register(spark)
    return spark.read.format("dledger").options(**options).load()


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
