"""Made-up cluster for stories about streams: a single queue of a single topic, with bounds that a story sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger_spark import plans, streaming
from dledger_spark.offsets import Queue
from dledger_spark.options import read_options
from dledger_spark.partitions import QueueRange
from dledger_spark.plans import GroupPlan, QueueBounds
from dledger_spark.streaming import StreamReader

QUEUE = Queue("t", "broker-a", 0)


class MadeUpCluster:
    """Replacement for `plans.Cluster`."""

    def __init__(self) -> None:
        self.first, self.end = 0, 5
        self.identity = ""

    def groups(self) -> list[str]:
        """Return the single group."""
        return [QUEUE.group]

    def queues(self, *, all_exist: bool = True) -> list[Queue]:
        """Return the single queue."""
        _ = all_exist
        return [QUEUE]

    def subscribes(self, queue: Queue) -> bool:
        """Return whether this is the single queue."""
        return queue == QUEUE

    def left(self, _plan: GroupPlan) -> set[Queue]:
        """Return no queues: no queue was taken away."""
        return set()

    def plan(self, group: str, _topics: Iterable[str]) -> GroupPlan:
        """Return the present plan of the group."""
        bounds = {QUEUE: QueueBounds(self.first, self.end)}
        return GroupPlan(group, 0, 0, 1000, [], {QUEUE.topic: 0}, bounds, self.identity)

    def close(self) -> None:
        """Do nothing: no connection is open."""


@contextmanager
def without_pauses(cluster: MadeUpCluster) -> Iterator[None]:
    """Make streams ask this cluster, every time without a pause."""
    with (
        patch.object(streaming, "DISCOVERY_SECONDS", 0.0),
        patch.object(streaming, "POLL_SECONDS", 0.0),
        patch.object(plans, "Cluster", lambda _: cluster),
    ):
        yield


def stream(**options: str) -> StreamReader:
    """Return a stream of the single topic."""
    all_options = {"namesrv": "a:1", "subscribe": QUEUE.topic, "startingOffsets": "earliest"} | options
    return StreamReader(read_options(all_options, "stream"))


def read_to(reader: StreamReader, start: dict[str, object]) -> tuple[dict[str, object], list[range]]:
    """Return the end offset of the next micro-batch, and the queue offsets that its tasks read."""
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = [part for part in reader.partitions(start, end) if isinstance(part, QueueRange)]
    return end, [range(part.start, part.end) for part in parts]
