"""`lag`: how far consumer groups are behind, over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

from dledger_client import ClientError, SyncAdmin
from dledger_remoting.topics import is_system_group

from ..errors import JobError
from ..signing import client_credentials, client_tls
from .inputs import OnPhase, silent, topic_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dledger_client import QueueStatus

SCHEMA = (
    "time TIMESTAMP, group STRING, topic STRING, broker_group STRING, queue_id INT, first BIGINT, end BIGINT, "
    "committed BIGINT, lag BIGINT"
)


@dataclass(frozen=True, slots=True)
class LagSample:
    """One group in one queue at one moment (ms since 1970).

    The queue keeps the offsets from `first` to below `end`. `committed` is the offset at which the group continues,
    None before its first commit. `lag` counts the messages that it still has to process.
    """

    time_ms: int
    group: str
    topic: str
    broker_group: str
    queue_id: int
    first: int
    end: int
    committed: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class LagResult:
    """The samples, in the order of time, and the times (ms since 1970) of missed samples with the reasons."""

    samples: list[LagSample]
    missed: list[tuple[int, str]] = field(default_factory=list)

    def totals(self) -> list[tuple[int, str, str, int]]:
        """Return time, group, topic and lag over all queues, for every sample."""
        sums: dict[tuple[int, str, str], int] = {}
        for lag_sample in self.samples:
            group_topic = (lag_sample.time_ms, lag_sample.group, lag_sample.topic)
            sums[group_topic] = sums.get(group_topic, 0) + lag_sample.lag
        return [(*group_topic, lag) for group_topic, lag in sums.items()]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the samples as a table, to plot, to join, or to append to Parquet."""
        from pyspark.sql import functions as f

        rows = [tuple(asdict(lag_sample).values()) for lag_sample in self.samples]
        schema = SCHEMA.replace("time TIMESTAMP", "time_ms BIGINT")
        table = spark.createDataFrame(rows, schema)
        return table.select(f.timestamp_millis("time_ms").alias("time"), *table.columns[1:])


class Offsets(Protocol):
    """Source of offsets: `dledger_client.SyncAdmin`."""

    def topics(self) -> list[str]:
        """Return all topics except the topics of the service."""

    def groups(self) -> Mapping[str, object]:
        """Return all consumer groups by name."""

    def offsets(self, group: str, topic: str) -> list[QueueStatus]:
        """Return the progress of a group in each queue of a topic."""


def lag(
    *,
    namesrv: str,
    groups: Sequence[str] = (),
    topics: str | Sequence[str] = (),
    samples: int = 1,
    interval_s: float = 10.0,
    on_phase: OnPhase = silent,
) -> LagResult:
    """Sample the committed offsets of groups beside the ends of their queues, `samples` times, `interval_s` apart.

    Without `groups` or `topics` all of them are sampled; pairs without any commit are left out. One sample asks twice
    for every group, topic and queue: name them where there are many. Raises `JobError` if the first sample fails, also
    for a named group that does not exist; a later one that fails is `missed`.
    """
    try:
        with SyncAdmin(namesrv, credentials=client_credentials(), tls=client_tls()) as admin:
            return sample(admin, groups, topic_list(topics), samples, interval_s, on_phase=on_phase)
    except ClientError as error:
        raise JobError(str(error)) from error


def sample(
    admin: Offsets,
    groups: Sequence[str],
    topics: Sequence[str],
    samples: int,
    interval_s: float,
    *,
    on_phase: OnPhase = silent,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
) -> LagResult:
    """Sample as `lag` does, with a given source of offsets, clock and wait."""
    lag_samples: list[LagSample] = []
    missed: list[tuple[int, str]] = []
    known = admin.groups() if groups else {}
    for group in groups:  # a mistyped group would seem to lag behind by all messages
        if group not in known and not is_system_group(group):
            raise JobError(f"there is no consumer group {group!r}: `dledger group list` shows those that there are")
    due = clock()
    for number in range(samples):
        if number:
            due += interval_s
            wait(max(due - clock(), 0.0))
        on_phase(f"sample {number + 1} of {samples}")
        now_ms = int(clock() * 1000)
        try:
            lag_samples += _take_sample(admin, groups, topics, now_ms)
        except ClientError as error:
            if not number:  # an error of the first sample would come again
                raise
            missed.append((now_ms, str(error)))
    return LagResult(lag_samples, missed)


def _take_sample(admin: Offsets, groups: Sequence[str], topics: Sequence[str], now_ms: int) -> list[LagSample]:
    """Take one sample of every group and topic."""
    lag_samples: list[LagSample] = []
    for group in groups or sorted(admin.groups()):
        for topic in topics or admin.topics():
            queues = admin.offsets(group, topic)
            if not (groups and topics) and all(status.committed is None for status in queues):
                continue
            lag_samples += [
                LagSample(
                    now_ms,
                    group,
                    topic,
                    status.queue.broker_group,
                    status.queue.queue_id,
                    status.first,
                    status.end,
                    status.committed,
                    status.lag,
                )
                for status in queues
            ]
    return lag_samples
