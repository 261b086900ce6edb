"""Streaming reads: offsets per queue, admission control, and what each micro-batch reads.

One reader lives in the planner's process while the query runs; the copies that tasks get only call `read`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn
from zlib import crc32

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from .errors import DataLossError, NoNameServerError, OptionError, SourceError, UnsubscribedError
from .offsets import (
    Creations,
    Offsets,
    Queue,
    StreamMode,
    creations_in,
    from_json,
    identities_in,
    mode_in,
    planned_ms_in,
    to_json,
)
from .options import ReadOptions
from .reading import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from .plans import Cluster, GroupPlan, QueueBounds
    from .progress import ProgressPublisher

_logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
"""Minimum interval in seconds between two plans. Spark asks for the latest offset every few milliseconds."""
PUBLISH_PAUSE_S: Final = 60.0
"""Pause in seconds after progress could not be published."""
DISCOVERY_SECONDS: Final = 1.0
"""Interval in seconds between two searches for added queues."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. A restart continues from the checkpoint; the same offsets always give the same rows."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._queues: list[Queue] = []
        self._must_exist = options.fail_on_data_loss
        """True if a query ends at its start or restart because a topic does not exist."""
        self._plans: dict[str, GroupPlan] = {}
        self._created: Creations = {}
        """Creation of each topic that this query has seen. It counts where an earlier version's checkpoint has none."""
        self._planned_at = self._discovered_at = float("-inf")
        self._last_batch_at = time.monotonic()
        self._target: Offsets | None = None
        self._publisher: ProgressPublisher | None = None
        self._is_new = False
        """True if Spark has asked this reader for initial offsets, because the query has no checkpoint."""
        self._has_batch = False
        """True if this reader has planned a micro-batch with messages."""
        self._publish_at = float("-inf")
        self.not_published = ""
        """Why the last progress was not published; empty if it was."""
        self._reported: set[str] = set()
        self._has_planned = False
        """True if this reader has planned a micro-batch. An earlier reader planned the first one of a restart."""

    # ---------------------------------------------------------------- what Spark calls in the planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the offsets at which a query without a checkpoint begins."""
        from .planning import check_start, starting_offsets

        self._must_exist = True
        self._is_new = True
        bounds = self._read_bounds()
        self._claim_group(bounds)
        self._note_creations()
        starts = starting_offsets(self._options, self._open_cluster(), bounds)
        for queue, (first, end) in bounds.items():
            starts[queue] = check_start(queue, starts[queue], first, end, self._options.fail_on_data_loss)
        self._has_planned = True
        return to_json(starts, self._check_identities(), creations=self._merge_creations())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the end of the next micro-batch: `start` itself if there is nothing to read yet."""
        begins = from_json(start)
        self._has_planned = True
        self._publish(begins)
        self._read_bounds(begins, fresh=True)
        identities = self._check_identities(start)
        ends = self._find_ends(begins, creations_in(start))
        creations = self._merge_creations(start)
        backlog = {queue: end - self.start_offset(begins, queue, end) for queue, end in ends.items()}
        total = sum(backlog.values())
        if total == 0 or self._waits_for_more(total, limit):
            known = {**dict.fromkeys(ends, 0), **begins}
            return (
                start
                if known == from_json(start)
                else to_json(
                    known,
                    identities,
                    creations=creations,
                    mode=mode_in(start) if self._options.mode == "auto" else None,
                )
            )
        self._last_batch_at = time.monotonic()
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
        if (
            maximum is not None
            and not (isinstance(limit, ReadAllAvailable) and self._target is None)
            and total > maximum
        ):
            shares = proportional_shares(backlog, maximum)
            ends = {queue: self.start_offset(begins, queue, end) + shares[queue] for queue, end in ends.items()}
        mode = self._choose_mode(start, ends)
        planned = to_json({**begins, **ends}, identities, int(time.time() * 1000), creations, mode)
        # Spark passes the start of every micro-batch except the first.
        is_first, self._has_batch = self._is_new and not self._has_batch, True
        return planned | {"begins": to_json(begins)} if is_first else planned

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Return the limit of a micro-batch, as far as Spark has a type for it."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the newest offsets, for the query's progress report."""
        return to_json({queue: bounds.end for queue, bounds in self._read_bounds().items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Fix the end of the query at what is there now."""
        self._target = {queue: bounds.end for queue, bounds in self._read_bounds().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the parts that the tasks of a micro-batch read. Raises `DataLossError` and other `SourceError`s."""
        from .planning import micro_batch_slices, queue_ranges

        begins, ends = from_json(start), from_json(end)
        bounds = self._read_bounds(ends)
        self._check_identities(end)
        creations = creations_in(end)
        if not self._has_planned:
            self._warn_of_late_repetition(end)
        ranges: dict[Queue, tuple[int, int]] = {}
        for queue, stop in ends.items():
            begin = self.start_offset(begins, queue, stop)
            if begin >= stop:
                continue
            if queue not in bounds:
                self.report_loss(f"{queue} does not exist any more, offsets {begin} to {stop} were to be read")
                continue
            if self._is_of_earlier_topic(queue, creations):
                self.report_loss(
                    f"{queue} is of a topic that was made again, {begin} to {stop} of the earlier one were next"
                )
                continue
            first, next_offset = bounds[queue]
            if begin < first or stop > next_offset:
                self.report_loss(
                    f"offsets {begin} to {stop} of {queue} are not all kept, only {first} to {next_offset}"
                )
                begin, stop = max(begin, first), min(stop, next_offset)
            if begin < stop:
                ranges[queue] = (begin, stop)
        if self._options.mode == "auto" and mode_in(end) == "segments":
            return list(micro_batch_slices(self._options, self._open_cluster(), self._plans, ranges))
        return list(queue_ranges(self._options, self._plans, ranges, self._options.row_filter))

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the progress of a micro-batch that is done."""
        self._publish(from_json(end))

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # ---------------------------------------------------------------- what Spark calls in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_partition(partition)

    # ---------------------------------------------------------------- the cluster

    def _check_identities(self, checkpoint: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the identities of the broker groups. Raises `OtherGroupError` if the checkpoint is about others."""
        from .restarts import check_identities

        identities = {group: plan.group_identity for group, plan in self._plans.items()}
        return check_identities(identities, identities_in(checkpoint or {}), self._reported)

    def _merge_creations(self, checkpoint: Mapping[str, Any] | None = None) -> Creations:
        """Return the creations of topics that the next offsets get: present ones, else those of the checkpoint."""
        return {**creations_in(checkpoint or {}), **self._created}

    def _is_of_earlier_topic(self, queue: Queue, creations: Creations) -> bool:
        """Return True if these creations name an earlier one than the present one of a queue's topic."""
        now = self._plans[queue.group].created[queue.topic]
        return creations.get((queue.topic, queue.group), now) != now

    def _choose_mode(self, checkpoint: Mapping[str, Any], queues: Iterable[Queue]) -> StreamMode | None:
        """Return the mode that the checkpoint has, or gets; None unless it is to be chosen."""
        if self._options.mode != "auto":
            return None
        from .stream_mode import choose

        return mode_in(checkpoint) or choose(self._options, self._open_cluster(), queues)

    def _warn_of_late_repetition(self, end: Mapping[str, Any]) -> None:
        from .restarts import tell_late_repetition

        self._has_planned = True
        tell_late_repetition(planned_ms_in(end), self._options.namesrv)

    def _open_cluster(self) -> Cluster:
        if self._cluster is None:
            from .plans import Cluster

            self._cluster = Cluster(self._options)
        return self._cluster

    def _read_bounds(self, known: Iterable[Queue] = (), *, fresh: bool = False) -> dict[Queue, QueueBounds]:
        """Return the first and next offset of every queue, at most `POLL_SECONDS` old, or new ones if `fresh`.

        The result has the queues `known` from a checkpoint, even if their topic has fewer queues now.
        """
        from .plans import QueueBounds

        cluster, now = self._open_cluster(), time.monotonic()
        wait_s = self._planned_at + POLL_SECONDS - now
        if fresh and wait_s > 0:
            time.sleep(wait_s)
            now = time.monotonic()
        if now - self._discovered_at >= DISCOVERY_SECONDS:
            self._discover(cluster)
            self._discovered_at = time.monotonic()
            self._planned_at = float("-inf")
        self._add_known_queues(cluster, known)
        if fresh or now - self._planned_at >= POLL_SECONDS:
            groups = sorted({queue.group for queue in self._queues})
            topics = {queue.topic for queue in self._queues}
            self._plans = {group: cluster.plan(group, topics) for group in groups}
            self._queues = sorted(set(self._queues).union(*map(cluster.left, self._plans.values())))
            self._planned_at = time.monotonic()
        return {
            queue: self._plans[queue.group].bounds.get(queue, QueueBounds(0, 0))
            for queue in self._queues
            if queue.topic in self._plans[queue.group].created
        }

    def _add_known_queues(self, cluster: Cluster, known: Iterable[Queue]) -> None:
        """Add queues of a checkpoint that are subscribed to and whose broker group exists."""
        added = [queue for queue in set(known).difference(self._queues) if cluster.subscribes(queue)]
        if added:
            existing_groups = set(cluster.groups())
            self._queues = sorted({*self._queues, *(queue for queue in added if queue.group in existing_groups)})
            self._planned_at = float("-inf")

    def _discover(self, cluster: Cluster) -> None:
        """Add the queues that the name servers list.

        Do not remove queues: name servers may have just started. A queue's broker reports whether it is gone.
        """
        try:
            if {queue.group for queue in self._queues} <= set(cluster.groups()):
                listed_queues = cluster.queues(all_exist=self._must_exist and not self._queues)
                self._queues = sorted({*self._queues, *listed_queues})
        except NoNameServerError as error:
            if not self._queues:
                raise
            _logger.warning("event=no_name_server consequence='reading the queues that are known' error=%r", error)

    def _find_ends(self, begins: Offsets, creations: Creations) -> Offsets:
        """Return the offsets up to which queues can be read now, but no further than the target of a query that ends.

        `creations` has the creations of the topics of `begins`, if the checkpoint has them.

        A queue whose messages are gone is removed from `begins`: later messages under its name are read like those of a
        new queue.
        """
        bounds = self._read_bounds(begins)
        known = {**self._created, **creations}
        ends = {queue: queue_bounds.end for queue, queue_bounds in bounds.items()}
        if self._target is not None:
            ends = {queue: min(end, self._target.get(queue, 0)) for queue, end in ends.items() if queue in self._target}
        for queue, begin in list(begins.items()):
            if queue not in bounds and not self._open_cluster().subscribes(queue):
                self._report_unsubscribed(queue, begin)
            elif queue not in bounds and (self._target is None or begin < self._target.get(queue, begin + 1)):
                self.report_loss(f"{queue} does not exist any more, offset {begin} was to be read next")
                del begins[queue]
            elif queue in bounds and begin > 0 and self._is_of_earlier_topic(queue, known):
                self.report_loss(
                    f"{queue} is of a topic that was made again, offset {begin} of the earlier one was next"
                )
                del begins[queue]
                ends[queue] = 0  # this batch reads nothing of the queue; the next batch begins at its start
            elif queue in bounds and bounds[queue].end < begin:
                self.report_loss(f"{queue} ends at offset {bounds[queue].end}, but offset {begin} was to be read next")
                del begins[queue]
            elif queue in ends:
                ends[queue] = max(ends[queue], begin)
        self._note_creations()
        return ends

    def _note_creations(self) -> None:
        for group, plan in self._plans.items():
            self._created.update(((topic, group), created) for topic, created in plan.created.items())

    @staticmethod
    def start_offset(begins: Mapping[Queue, int], queue: Queue, end: int) -> int:
        """Return the offset at which a queue is read: its start if it is new, or if its topic was made again."""
        begin = begins.get(queue, 0)
        return begin if begin <= end else 0

    def reads_to_a_target(self) -> bool:
        """Return True if the query reads the messages that were there at its start, and then ends."""
        return self._target is not None

    def _waits_for_more(self, total: int, limit: ReadLimit) -> bool:
        minimum = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.min_offsets_per_trigger
        if minimum is None or total >= minimum or self.reads_to_a_target():
            return False
        return time.monotonic() - self._last_batch_at < self._options.max_trigger_delay_s

    def report_loss(self, what: str) -> None:
        """Log once that messages are gone. Raises `DataLossError` if the query fails on data loss."""
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        if what not in self._reported:
            self._reported.add(what)
            _logger.warning("event=data_loss what=%r", what)

    def _report_unsubscribed(self, queue: Queue, begin: int) -> None:
        """Report a queue of the checkpoint that is not subscribed to any more. Its offset stays in the checkpoint."""
        what = f"{queue} stands in the checkpoint with offset {begin}, and its topic or queue has left the subscription"
        if self._options.fail_on_data_loss:
            raise UnsubscribedError(what)
        if what not in self._reported:
            self._reported.add(what)
            _logger.warning("event=unsubscribed what=%r consequence='not read, its offset stays'", what)

    def _publish(self, offsets: Offsets) -> None:
        """Publish progress as a consumer group's offsets, which nothing depends on."""
        if self._options.group_id is None or time.monotonic() < self._publish_at:
            return
        try:
            self._open_publisher(self._options.group_id).publish(self._open_cluster(), offsets)
        except OptionError:
            raise
        except SourceError as error:
            self._pause_publishing(error)
        else:
            self.not_published = ""

    def _pause_publishing(self, error: SourceError) -> None:
        self._publish_at = time.monotonic() + PUBLISH_PAUSE_S
        if str(error) != self.not_published:
            self.not_published = str(error)
            _logger.warning("group=%s event=progress_not_published error=%r", self._options.group_id, error)

    def _claim_group(self, queues: Iterable[Queue]) -> None:
        """End a new query whose `groupId` is a group that others use."""
        if self._options.group_id is not None:
            try:
                self._open_publisher(self._options.group_id).claim(self._open_cluster(), queues)
            except OptionError:
                raise
            except SourceError as error:  # it is tried again before anything is published
                self._pause_publishing(error)

    def _open_publisher(self, group_id: str) -> ProgressPublisher:
        if self._publisher is None:
            from .progress import ProgressPublisher

            mark = f"{crc32(repr(self._options.subscription).encode()):08x}"
            self._publisher = ProgressPublisher(group_id, mark, is_new=self._is_new)
        return self._publisher


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a stream whose options are wrong, and says so once it is used.

    PySpark 4.2 shows an `UnboundLocalError` of its own instead of what `streamReader` raises.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802 (Spark's name)
        """Raise the error, like every other method that Spark may call."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: ARG002, N802 (Spark's)
        """Raise the error."""
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802 (Spark's name)
        """Raise the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802 (Spark's name)
        """Raise the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002 (Spark's)
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002 (Spark's)
        """Raise the error."""
        raise self._error


def proportional_shares(backlog: Mapping[Queue, int], maximum: int) -> dict[Queue, int]:
    """Return the number of messages that each queue gives to a micro-batch of `maximum`, by its backlog.

    A queue with messages gives at least one, unless more than `maximum` queues have messages.
    """
    if sum(backlog.values()) <= maximum:
        return dict(backlog)
    waiting = {queue for queue, size in backlog.items() if size}
    minimum = {queue: int(queue in waiting and len(waiting) <= maximum) for queue in backlog}
    rest = {queue: size - minimum[queue] for queue, size in backlog.items()}
    total, maximum = sum(rest.values()), maximum - sum(minimum.values())
    shares = {queue: minimum[queue] + size * maximum // total for queue, size in rest.items()}
    remaining = maximum + sum(minimum.values()) - sum(shares.values())
    by_remainder = sorted(rest, key=lambda queue: (-(rest[queue] * maximum % total), queue))
    for queue in by_remainder[:remaining]:
        shares[queue] += 1
    return shares
