"""From options and plans to what each task reads: offsets per queue, ranges of queues, slices of the log."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from .errors import DataLossError, OptionError, RefusedError
from .filters import PushedFilters
from .offsets import EARLIEST, LATEST, Offsets, Queue, QueueNumbers
from .options import Position, ReadOptions
from .partitions import LogSlice, QueueRange, Source
from .plans import TRIMMED, Cluster, GroupPlan, QueueBounds
from .queues import locate
from .wanted import RowFilter, TopicRange

MIN_SLICE_BYTES: Final = 1 << 20
MAX_SLICE_BYTES: Final = 64 << 20
NO_END: Final = 1 << 62
"""Behind every position."""
MAX_LOCATED: Final = 256
"""Queues of which it is asked where the messages at their first and last wanted offsets lie, one pull for each."""
PAUSE_S: Final = 0.1
"""After a node planned what the leader keeps no longer, until it is planned again."""
DEFAULT_SLICES: Final = 8
"""A log that is small is still cut into so many slices, unless they would be smaller than the minimum."""


class BatchPlanner:
    """Plans one batch read; it asks the cluster, so it lives in the planner's process only."""

    def __init__(self, options: ReadOptions, pushed: PushedFilters) -> None:
        self._options = options
        self._pushed = pushed

    def partitions(self) -> list[LogSlice] | list[QueueRange]:
        """What the tasks read. Raises `SourceError` and its subclasses."""
        cluster = Cluster(self._options)
        try:
            queues = cluster.queues()
            plans = {group: cluster.plan(group, {queue.topic for queue in queues}) for group in _groups(queues)}
            ranges = self._ranges(cluster, plans, queues)
            if self._options.mode == "queues":
                return queue_ranges(self._options, plans, ranges, self._row_filter())
            return self._slices(cluster, plans, ranges)
        finally:
            cluster.close()

    # ---------------------------------------------------------------- offsets

    def _ranges(
        self, cluster: Cluster, plans: Mapping[str, GroupPlan], queues: list[Queue]
    ) -> dict[Queue, tuple[int, int]]:
        """The offsets to read of every queue, those without any left out."""
        bounds = {queue: plans[queue.group].bounds.get(queue, QueueBounds(0, 0)) for queue in queues}
        starts = starting_offsets(self._options, cluster, bounds)
        ends = ending_offsets(self._options, cluster, bounds)
        _check_order(self._options, bounds)
        ranges: dict[Queue, tuple[int, int]] = {}
        for queue, (first, next_offset) in bounds.items():
            start = check_start(queue, starts[queue], first, next_offset, self._options.fail_on_data_loss)
            end = ends[queue]
            if end > next_offset and self._options.fail_on_data_loss:
                raise DataLossError(f"{queue} ends at offset {next_offset}, below the ending offset {end}")
            end = min(end, next_offset)
            if not self._pushed.wants(queue.topic, plans[queue.group].partition(queue)):
                continue
            pushed = self._pushed.offset
            start = start if pushed.low is None else max(start, pushed.low)
            end = end if pushed.high is None else min(end, pushed.high)
            if start < end:
                ranges[queue] = (start, end)
        return ranges

    def _row_filter(self) -> RowFilter:
        tags, pushed = self._options.tags, self._pushed.tags
        both = tags if pushed is None else pushed if tags is None else tags & pushed
        times, texts = self._pushed.timestamp, tuple(self._pushed.texts)
        return RowFilter(times.low, times.high, both, texts, self._options.sql)

    # ---------------------------------------------------------------- tasks

    def _slices(
        self, cluster: Cluster, plans: Mapping[str, GroupPlan], ranges: Mapping[Queue, tuple[int, int]]
    ) -> list[LogSlice]:
        slices: list[LogSlice] = []
        row_filter = self._row_filter()
        pin = (self._options.pin or f"spark-{uuid.uuid4()}") if self._options.pin_lease_ms else None
        for group in _groups(ranges):
            mine = {queue: offsets for queue, offsets in ranges.items() if queue.group == group}
            low, high = self._span(cluster, plans[group], mine)
            deadline = time.monotonic() + self._options.read_timeout_s
            while True:
                plan = self._cut_plan(cluster, group, sorted({queue.topic for queue in mine}), low, high)
                topics = self._topic_ranges(plans[group], plan, mine)
                wanted = _wanted_slices(
                    plan, topics, high, row_filter, len(slices), _source(self._options, plan, row_filter), pin
                )
                if not wanted or pin is None or self._is_pinned(cluster, group, pin, wanted[0].start, deadline):
                    break
                time.sleep(PAUSE_S)
            slices += wanted
        return slices

    def _is_pinned(self, cluster: Cluster, group: str, pin: str, position: int, deadline: float) -> bool:
        """Pin a group's log; False if a trim came first, and there is time to plan again."""
        try:
            cluster.pin(group, pin, position, self._options.pin_lease_ms)
        except RefusedError as error:
            if error.code != TRIMMED or time.monotonic() >= deadline:
                raise
            return False
        return True

    def _topic_ranges(
        self, before: GroupPlan, plan: GroupPlan, ranges: Mapping[Queue, tuple[int, int]]
    ) -> list[TopicRange]:
        """What is wanted of each topic of a group: the offsets that were planned `before`, as far as `plan` has them.

        A trim, or a topic of the same name that begins its offsets anew, may have come between. Raises `DataLossError`
        if that must fail.
        """
        fail_on_data_loss = self._options.fail_on_data_loss
        topics: dict[str, TopicRange] = {}
        for queue, (start, end) in ranges.items():
            if plan.created.get(queue.topic) == before.created[queue.topic]:
                start = check_start(queue, start, *plan.bounds[queue], fail_on_data_loss)
                topic = topics.setdefault(queue.topic, TopicRange(queue.topic, {}, plan.created[queue.topic]))
                topic.queues[queue.queue_id] = start, end
            elif fail_on_data_loss:
                raise DataLossError(f"topic {queue.topic} was deleted from {plan.group} while the read was planned")
        return list(topics.values())

    def _span(self, cluster: Cluster, plan: GroupPlan, queues: Mapping[Queue, tuple[int, int]]) -> tuple[int, int]:
        """The bytes of a group's log between which all wanted messages lie, as far as that is cheap to know.

        None lies before its topic was created. Where every queue is read from a later offset than its first, or to an
        earlier one than its last, the messages there say where they lie. An end that is not known is `NO_END`.
        """
        low, high = min((plan.created[queue.topic] for queue in queues), default=0), NO_END
        if len(queues) > MAX_LOCATED:
            return low, high
        starts = {queue: start for queue, (start, _) in queues.items() if start > plan.bounds[queue].first}
        if len(starts) == len(queues):
            positions = self._positions(cluster, plan, starts)
            low = min(positions, default=low)
        ends = {queue: end - 1 for queue, (_, end) in queues.items() if end < plan.bounds[queue].end}
        if len(ends) == len(queues):
            positions = self._positions(cluster, plan, ends)
            high = max(positions, default=high - 1) + 1
        return low, high

    def _positions(self, cluster: Cluster, plan: GroupPlan, offsets: Offsets) -> list[int]:
        """Where the messages at these offsets lie; nothing if that is not known of all of them."""
        replicas = cluster.reader(plan.group)
        positions: list[int] = []
        for queue, offset in offsets.items():
            position = locate(replicas, queue, offset, self._options.roles, plan.commit)
            if position is None or not plan.created[queue.topic] <= position < plan.commit:
                return []
            positions.append(position)
        return positions

    def _cut_plan(self, cluster: Cluster, group: str, topics: list[str], low: int, high: int) -> GroupPlan:
        """A plan with cuts from byte `low` on, as far apart as the bytes up to `high` and the options say."""
        size = cluster.plan(group, topics)
        wanted = max(self._options.min_partitions or 0, DEFAULT_SLICES)
        slice_bytes = (min(size.commit, high) - max(size.first_position, low)) // wanted
        slice_bytes = min(max(slice_bytes, MIN_SLICE_BYTES), MAX_SLICE_BYTES)
        times = self._pushed.timestamp.low is not None or self._pushed.timestamp.high is not None
        return cluster.plan(group, topics, slice_bytes=slice_bytes, start=low, times=times)


def queue_ranges(
    options: ReadOptions,
    plans: Mapping[str, GroupPlan],
    ranges: Mapping[Queue, tuple[int, int]],
    row_filter: RowFilter,
) -> list[QueueRange]:
    """The tasks that read these offsets queue by queue."""
    parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    return [
        QueueRange(
            source=_source(options, plans[queue.group], row_filter),
            queue=queue,
            start=start,
            end=end,
            first_position=plans[queue.group].created[queue.topic],
            commit=plans[queue.group].commit,
            preference=number,
        )
        for number, (queue, start, end) in enumerate(parts)
    ]


def _source(options: ReadOptions, plan: GroupPlan, row_filter: RowFilter) -> Source:
    """What all tasks on one broker group need to know."""
    return Source(
        namesrv=options.namesrv,
        group=plan.group,
        ordinal=plan.ordinal,
        read_from=options.read_from,
        roles=options.roles,
        read_timeout_s=options.read_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
        columns=options.columns,
        row_filter=row_filter,
        min_bytes_per_second=options.min_bytes_per_second,
        max_bytes_per_second=options.max_bytes_per_second,
    )


def _wanted_slices(
    plan: GroupPlan,
    topics: list[TopicRange],
    high: int,
    row_filter: RowFilter,
    number: int,
    source: Source,
    pin: str | None,
) -> list[LogSlice]:
    """The slices that can hold wanted records: neither wholly before the topics, nor at or behind byte `high`, nor
    outside the wanted times.
    """
    slices: list[LogSlice] = []
    lowest = min((topic.first_position for topic in topics), default=plan.commit)
    for place, cut in enumerate(plan.cuts):
        following = plan.cuts[place + 1] if place + 1 < len(plan.cuts) else None
        end = plan.commit if following is None else following.position
        if end <= lowest or cut.position >= min(end, high) or not _may_hold(row_filter, cut.min_time, cut.max_time):
            continue
        slices.append(
            LogSlice(
                source=source,
                start=cut.position,
                end=end,
                index=cut.log_index,
                previous_chain=cut.previous_chain,
                end_chain=None if following is None else following.previous_chain,
                topics=topics,
                pin=pin,
                preference=number + len(slices),
            )
        )
    return slices


def _may_hold(row_filter: RowFilter, min_time: int | None, max_time: int | None) -> bool:
    if row_filter.from_ms is None and row_filter.to_ms is None:
        return True
    if min_time is None or max_time is None:
        return False  # times were asked for, and there is no record
    return (row_filter.from_ms is None or max_time >= row_filter.from_ms) and (
        row_filter.to_ms is None or min_time < row_filter.to_ms
    )


def starting_offsets(options: ReadOptions, cluster: Cluster, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    """Where the options say that reading starts. Raises `OptionError`."""
    if options.starting_times is None:
        return _resolved(options.starting, bounds)
    times = _times(options.starting_times, bounds)
    starts = cluster.offsets_at(times)
    for queue, offset in starts.items():
        if offset >= bounds[queue].end:
            if not options.latest_without_time:
                raise OptionError(
                    "startingOffsetsByTimestampStrategy",
                    "error",
                    f"{queue} has no message stored at or after {times[queue]}; `latest` would start at its end",
                )
            starts[queue] = bounds[queue].end
    return starts


def ending_offsets(options: ReadOptions, cluster: Cluster, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    """Where the options say that reading ends, exclusive. Raises `OptionError`."""
    if options.ending_times is None:
        return _resolved(options.ending, bounds)
    found = cluster.offsets_at(_times(options.ending_times, bounds))
    return {queue: min(offset, bounds[queue].end) for queue, offset in found.items()}


def _check_order(options: ReadOptions, queues: Collection[Queue]) -> None:
    """Raise `OptionError` if both offsets of a queue are given, and the end lies before the start."""
    if isinstance(options.starting, QueueNumbers) and isinstance(options.ending, QueueNumbers):
        starts = options.starting.resolve(queues)
        for queue, end in options.ending.resolve(queues).items():
            if 0 <= end < starts[queue]:
                raise OptionError(
                    "endingOffsets",
                    options.ending.text,
                    f"{queue} would end at {end}, before startingOffsets, where it starts at {starts[queue]}",
                )


def check_start(queue: Queue, start: int, first: int, end: int, fail_on_data_loss: bool) -> int:
    """A start within the kept offsets. Raises `DataLossError` if it is not and that must fail."""
    if first <= start <= end:
        return start
    if fail_on_data_loss:
        gone = f"below the first kept offset {first}" if start < first else f"beyond the end {end}"
        raise DataLossError(f"offset {start} of {queue} is {gone}")
    return min(max(start, first), end)


def split_ranges(
    ranges: Mapping[Queue, tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> list[tuple[Queue, int, int]]:
    """Ranges of queues for tasks: one per queue, or more where a queue has more than its share.

    As Spark's Kafka source does: first no part is larger than `max_records`, then the parts are divided in proportion
    to their size until there are about `min_partitions`.
    """
    parts: list[tuple[Queue, int, int]] = []
    for queue, (start, end) in sorted(ranges.items()):
        pieces = 1 if max_records is None else -(-(end - start) // max_records)
        parts += _pieces(queue, start, end, pieces)
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(end - start for _, start, end in parts)
    divided: list[tuple[Queue, int, int]] = []
    for queue, start, end in parts:
        share = -(-(end - start) * min_partitions // total)
        divided += _pieces(queue, start, end, min(share, end - start))
    return divided


def _pieces(queue: Queue, start: int, end: int, count: int) -> Iterable[tuple[Queue, int, int]]:
    size = end - start
    for piece in range(count):
        low, high = start + size * piece // count, start + size * (piece + 1) // count
        if low < high:
            yield queue, low, high


def _resolved(position: Position, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    numbers = dict.fromkeys(bounds, position) if isinstance(position, int) else position.resolve(bounds)
    words = {EARLIEST: 0, LATEST: 1}
    return {queue: bounds[queue][words[number]] if number in words else number for queue, number in numbers.items()}


def _times(times: int | QueueNumbers, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    return dict.fromkeys(bounds, times) if isinstance(times, int) else times.resolve(bounds)


def _groups(queues: Iterable[Queue]) -> list[str]:
    return sorted({queue.group for queue in queues})
