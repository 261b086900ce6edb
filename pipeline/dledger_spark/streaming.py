"""Streaming reads: offsets per queue, admission control, and what each micro-batch reads.

One reader lives in the planner's process for as long as the query runs; the copies that tasks get only call `read`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from .errors import DataLossError, NoNameServerError, OptionError, SourceError
from .offsets import Offsets, Queue, from_json, to_json
from .options import ReadOptions
from .reading import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from .plans import Cluster, GroupPlan, QueueBounds
    from .progress import ProgressPublisher

_logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
"""Spark asks for the latest offset every few milliseconds; the cluster is asked at most this often."""
DISCOVERY_SECONDS: Final = 1.0
"""How often queues that were added are looked for."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. A restart goes on from the checkpoint; the same offsets always give the same rows."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._queues: list[Queue] = []
        self._must_exist = options.fail_on_data_loss
        """Whether a query that starts anew or again ends over a topic that does not exist."""
        self._plans: dict[str, GroupPlan] = {}
        self._planned_at = self._discovered_at = float("-inf")
        self._last_batch_at = time.monotonic()
        self._target: Offsets | None = None
        self._publisher: ProgressPublisher | None = None
        self._said: set[str] = set()

    # ---------------------------------------------------------------- what Spark calls in the planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins."""
        from .planning import check_start, starting_offsets

        self._must_exist = True
        bounds = self._look()
        starts = starting_offsets(self._options, self._asked(), bounds)
        for queue, (first, end) in bounds.items():
            starts[queue] = check_start(queue, starts[queue], first, end, self._options.fail_on_data_loss)
        return to_json(starts)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where the next micro-batch ends: `start` itself if there is nothing to read yet."""
        begins = from_json(start)
        self._publish(begins)
        ends = self._ends(begins)
        backlog = {queue: end - self._begin(begins, queue, end) for queue, end in ends.items()}
        total = sum(backlog.values())
        if total == 0 or self._waits_for_more(total, limit):
            known = {**dict.fromkeys(ends, 0), **begins}
            return start if known == from_json(start) else to_json(known)
        self._last_batch_at = time.monotonic()
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
        if (
            maximum is not None
            and not (isinstance(limit, ReadAllAvailable) and self._target is None)
            and total > maximum
        ):
            shares = proportional_shares(backlog, maximum)
            ends = {queue: self._begin(begins, queue, end) + shares[queue] for queue, end in ends.items()}
        return to_json({**begins, **ends})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """The limit of a micro-batch, as far as Spark has a type for it."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """The newest offsets, for the query's progress report."""
        return to_json({queue: bounds.end for queue, bounds in self._look().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix the end of the query at what is there now."""
        self._target = {queue: bounds.end for queue, bounds in self._look().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What the tasks of a micro-batch read. Raises `DataLossError` and other `SourceError`s."""
        from .planning import queue_ranges

        begins, ends = from_json(start), from_json(end)
        bounds = self._look()
        ranges: dict[Queue, tuple[int, int]] = {}
        for queue, stop in ends.items():
            begin = self._begin(begins, queue, stop)
            if begin >= stop:
                continue
            if queue not in bounds:
                self._lost(f"{queue} does not exist any more, offsets {begin} to {stop} were to be read")
                continue
            first, next_offset = bounds[queue]
            if begin < first or stop > next_offset:
                self._lost(f"offsets {begin} to {stop} of {queue} are not all kept, only {first} to {next_offset}")
                begin, stop = max(begin, first), min(stop, next_offset)
            if begin < stop:
                ranges[queue] = (begin, stop)
        return list(queue_ranges(self._options, self._plans, ranges, self._options.row_filter))

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch is done."""
        self._publish(from_json(end))

    def stop(self) -> None:
        """The query ends."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # ---------------------------------------------------------------- what Spark calls in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(partition)

    # ---------------------------------------------------------------- the cluster

    def _asked(self) -> Cluster:
        if self._cluster is None:
            from .plans import Cluster

            self._cluster = Cluster(self._options)
        return self._cluster

    def _look(self, *, fresh: bool = False) -> dict[Queue, QueueBounds]:
        """First and next offset of every queue, at most `POLL_SECONDS` old; `fresh` ones are waited for instead."""
        from .plans import QueueBounds

        cluster, now = self._asked(), time.monotonic()
        early = self._planned_at + POLL_SECONDS - now
        if fresh and early > 0:
            time.sleep(early)
            now = time.monotonic()
        if now - self._discovered_at >= DISCOVERY_SECONDS:
            self._discover(cluster)
            self._discovered_at = time.monotonic()
            self._planned_at = float("-inf")
        if fresh or now - self._planned_at >= POLL_SECONDS:
            groups = sorted({queue.group for queue in self._queues})
            topics = {queue.topic for queue in self._queues}
            self._plans = {group: cluster.plan(group, topics) for group in groups}
            self._planned_at = time.monotonic()
        return {
            queue: self._plans[queue.group].bounds.get(queue, QueueBounds(0, 0))
            for queue in self._queues
            if queue.topic in self._plans[queue.group].created
        }

    def _discover(self, cluster: Cluster) -> None:
        """Learn which queues there are, as far as name servers know.

        Whether one that was there is gone, its broker tells: name servers may have started just now.
        """
        try:
            if {queue.group for queue in self._queues} <= set(cluster.groups()):
                found = cluster.queues(all_exist=self._must_exist and not self._queues)
                self._queues = sorted({*self._queues, *found})
        except NoNameServerError as error:
            if not self._queues:
                raise
            _logger.warning("event=no_name_server consequence='reading the queues that are known' error=%r", error)

    def _ends(self, begins: Offsets) -> Offsets:
        """Up to where every queue can be read now; the target of a query that ends does not move.

        A queue whose messages are gone is taken out of `begins`: what it holds under its name later is read as a new
        queue's is.
        """
        bounds = self._look(fresh=True)
        ends = {queue: there.end for queue, there in bounds.items()}
        if self._target is not None:
            ends = {queue: min(end, self._target.get(queue, 0)) for queue, end in ends.items() if queue in self._target}
        for queue, begin in list(begins.items()):
            if queue not in bounds and (self._target is None or begin < self._target.get(queue, begin + 1)):
                self._lost(f"{queue} does not exist any more, offset {begin} was to be read next")
                del begins[queue]
            elif queue in bounds and bounds[queue].end < begin:
                self._lost(f"{queue} ends at offset {bounds[queue].end}, but offset {begin} was to be read next")
                del begins[queue]
            elif queue in ends:
                ends[queue] = max(ends[queue], begin)
        return ends

    @staticmethod
    def _begin(begins: Mapping[Queue, int], queue: Queue, end: int) -> int:
        """Where reading a queue begins: at its start if it is new, or if a later topic of its name took its place."""
        begin = begins.get(queue, 0)
        return begin if begin <= end else 0

    def _waits_for_more(self, total: int, limit: ReadLimit) -> bool:
        minimum = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.min_offsets_per_trigger
        if minimum is None or total >= minimum or self._target is not None:
            return False
        return time.monotonic() - self._last_batch_at < self._options.max_trigger_delay_s

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        if what not in self._said:
            self._said.add(what)
            _logger.warning("event=data_loss what=%r", what)

    def _publish(self, offsets: Offsets) -> None:
        """Publish progress as a consumer group's offsets, which nothing depends on."""
        if self._options.group_id is None:
            return
        from .progress import ProgressPublisher

        if self._publisher is None:
            self._publisher = ProgressPublisher(self._options.group_id)
        try:
            self._publisher.publish(self._asked(), offsets)
        except SourceError as error:
            _logger.warning("group=%s event=progress_not_published error=%r", self._options.group_id, error)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a stream whose options are wrong, and says so once it is used.

    PySpark 4.2 shows an `UnboundLocalError` of its own instead of what `streamReader` raises.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802 (Spark's name)
        """Raises the error, as everything else does that Spark may call."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: ARG002, N802 (Spark's)
        """Raises the error."""
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802 (Spark's name)
        """Raises the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802 (Spark's name)
        """Raises the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002 (Spark's)
        """Raises the error."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002 (Spark's)
        """Raises the error."""
        raise self._error


def proportional_shares(backlog: Mapping[Queue, int], maximum: int) -> dict[Queue, int]:
    """How many messages each queue gives to a micro-batch of `maximum`: in proportion to its backlog.

    Each that has any gives one at least, so that none waits for busier ones, unless there are more queues than that.
    """
    if sum(backlog.values()) <= maximum:
        return dict(backlog)
    waiting = {queue for queue, size in backlog.items() if size}
    least = {queue: int(queue in waiting and len(waiting) <= maximum) for queue in backlog}
    rest = {queue: size - least[queue] for queue, size in backlog.items()}
    total, maximum = sum(rest.values()), maximum - sum(least.values())
    shares = {queue: least[queue] + size * maximum // total for queue, size in rest.items()}
    left = maximum + sum(least.values()) - sum(shares.values())
    by_remainder = sorted(rest, key=lambda queue: (-(rest[queue] * maximum % total), queue))
    for queue in by_remainder[:left]:
        shares[queue] += 1
    return shares
