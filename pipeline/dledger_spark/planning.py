"""Planner of reads: from options and plans to offsets of queues, and to the slices or ranges that tasks read."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from .errors import DataLossError, DeniedError, OptionError, RefusedError
from .filters import PushedFilters
from .offsets import EARLIEST, LATEST, Offsets, Queue, QueueNumbers
from .options import Position, ReadOptions
from .partitions import LogSlice, QueueRange, Source
from .pins import pin as pinned
from .pins import present_application
from .plans import TRIMMED, Cluster, GroupPlan, QueueBounds
from .queues import locate
from .wanted import RowFilter, TopicRange

MIN_SLICE_BYTES: Final = 1 << 20
MAX_SLICE_BYTES: Final = 64 << 20
NO_END: Final = 1 << 62
"""A position behind every log's end, for a span without a known end."""
MAX_LOCATED: Final = 256
"""Maximum number of queues whose first and last wanted messages are located, with one pull each."""
MAX_LEASE_MS: Final = 3_600_000
"""Maximum lease of a pin, in ms, by the brokers' limit."""
PAUSE_S: Final = 0.1
"""Pause in seconds before a new plan, after a node planned data that the leader no longer keeps."""
DEFAULT_SLICES: Final = 8
"""Number of slices into which a small log is cut, unless they would be smaller than the minimum."""


class BatchPlanner:
    """Plans one batch read; it asks the cluster, so it lives in the planner's process only."""

    def __init__(self, options: ReadOptions, pushed: PushedFilters) -> None:
        self._options = options
        self._pushed = pushed

    def partitions(self) -> list[LogSlice] | list[QueueRange]:
        """Return the parts that the tasks read. Raises `SourceError` and its subclasses."""
        cluster = Cluster(self._options)
        try:
            queues = cluster.queues()
            plans = {group: cluster.plan(group, {queue.topic for queue in queues}) for group in _group_names(queues)}
            queues = sorted(set(queues).union(*map(cluster.left, plans.values())))
            ranges = self._plan_ranges(cluster, plans, queues)
            if self._options.mode == "queues":
                return queue_ranges(self._options, plans, ranges, self._row_filter())
            return self._plan_slices(cluster, plans, ranges)
        finally:
            cluster.close()

    # ---------------------------------------------------------------- offsets

    def _plan_ranges(
        self, cluster: Cluster, plans: Mapping[str, GroupPlan], queues: list[Queue]
    ) -> dict[Queue, tuple[int, int]]:
        """Return the offsets to read of every queue, without queues that have none."""
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
        wanted_tags = tags if pushed is None else pushed if tags is None else tags & pushed
        times, texts = self._pushed.timestamp, tuple(self._pushed.texts)
        return RowFilter(times.low, times.high, wanted_tags, texts, self._options.sql)

    # ---------------------------------------------------------------- tasks

    def _plan_slices(
        self, cluster: Cluster, plans: Mapping[str, GroupPlan], ranges: Mapping[Queue, tuple[int, int]]
    ) -> list[LogSlice]:
        slices: list[LogSlice] = []
        row_filter = self._row_filter()
        pin = self._pin_name()
        for group in _group_names(ranges):
            group_ranges = {queue: offsets for queue, offsets in ranges.items() if queue.group == group}
            low, high = self._locate_span(cluster, plans[group], group_ranges)
            deadline = time.monotonic() + self._options.read_timeout_s
            while True:
                plan = self._request_cut_plan(
                    cluster, group, sorted({queue.topic for queue in group_ranges}), low, high
                )
                topics = self._topic_ranges(plans[group], plan, group_ranges)
                group_slices = _select_slices(
                    plan, topics, high, row_filter, len(slices), _source(self._options, plan, row_filter), pin
                )
                if not group_slices or pin is None:
                    break
                try:
                    if not pinned(
                        cluster, self._options.namesrv, group, pin, group_slices[0].start, self._options.pin_lease_ms
                    ):
                        group_slices = [replace(part, pin=None) for part in group_slices]
                    break
                except RefusedError as error:  # a trim came first: there may be time to plan again
                    if error.code != TRIMMED or time.monotonic() >= deadline:
                        raise
                time.sleep(PAUSE_S)
            slices += group_slices
        return slices

    def _pin_name(self) -> str | None:
        if not self._options.pin_lease_ms:
            return None
        return self._options.pin or present_application().pin_name(self._options.pin_lease_ms, time.time())

    def _topic_ranges(
        self, earlier_plan: GroupPlan, plan: GroupPlan, ranges: Mapping[Queue, tuple[int, int]]
    ) -> list[TopicRange]:
        """Return the wanted part of each topic of a group: the offsets of `ranges`, as far as `plan` has them.

        A trim, or a topic of the same name that begins its offsets anew, may have come between. Raises `DataLossError`
        if that must fail.
        """
        fail_on_data_loss = self._options.fail_on_data_loss
        topics: dict[str, TopicRange] = {}
        for queue, (start, end) in ranges.items():
            if plan.created.get(queue.topic) == earlier_plan.created[queue.topic]:
                start = check_start(queue, start, *plan.bounds[queue], fail_on_data_loss)
                topic = topics.setdefault(queue.topic, TopicRange(queue.topic, {}, plan.created[queue.topic]))
                topic.queues[queue.queue_id] = start, end
            elif fail_on_data_loss:
                raise DataLossError(f"topic {queue.topic} was deleted from {plan.group} while the read was planned")
        return list(topics.values())

    def _locate_span(
        self, cluster: Cluster, plan: GroupPlan, queues: Mapping[Queue, tuple[int, int]]
    ) -> tuple[int, int]:
        """Return the positions in a group's log between which all wanted messages lie, if these are cheap to find.

        No message lies before its topic was created. If no queue is read from its first offset, or none up to
        its last, the messages at these offsets give the positions. An unknown end is `NO_END`.
        """
        low, high = min((plan.created[queue.topic] for queue in queues), default=0), NO_END
        if len(queues) > MAX_LOCATED:
            return low, high
        starts = {queue: start for queue, (start, _) in queues.items() if start > plan.bounds[queue].first}
        if len(starts) == len(queues):
            positions = self._locate_all(cluster, plan, starts)
            low = min(positions, default=low)
        ends = {queue: end - 1 for queue, (_, end) in queues.items() if end < plan.bounds[queue].end}
        if len(ends) == len(queues):
            positions = self._locate_all(cluster, plan, ends)
            high = max(positions, default=high - 1) + 1
        return low, high

    def lowest_positions(self, cluster: Cluster, plans: Mapping[str, GroupPlan], queues: list[Queue]) -> dict[str, int]:
        """Return the position of the first wanted message in each group's log, as far as that is cheap to find."""
        ranges = self._plan_ranges(cluster, plans, queues)
        positions: dict[str, int] = {}
        for group in _group_names(ranges):
            group_ranges = {queue: offsets for queue, offsets in ranges.items() if queue.group == group}
            positions[group] = max(
                self._locate_span(cluster, plans[group], group_ranges)[0], plans[group].first_position
            )
        return positions

    def slices_between(
        self, cluster: Cluster, earlier_plan: GroupPlan, ranges: Mapping[Queue, tuple[int, int]]
    ) -> list[LogSlice] | None:
        """Return the slices that hold these messages of one group, and little else; None if one cannot be located.

        They are not pinned, and their rows tell no entries.
        """
        if len(ranges) > MAX_LOCATED:
            return None
        lows = self._locate_all(cluster, earlier_plan, {queue: start for queue, (start, _) in ranges.items()})
        highs = self._locate_all(cluster, earlier_plan, {queue: end - 1 for queue, (_, end) in ranges.items()})
        if not (lows and highs):
            return None
        low, high = min(lows), max(highs) + 1
        plan = self._request_cut_plan(cluster, earlier_plan.group, sorted({queue.topic for queue in ranges}), low, high)
        topics, row_filter = self._topic_ranges(earlier_plan, plan, ranges), self._row_filter()
        slices = _select_slices(plan, topics, high, row_filter, 0, _source(self._options, plan, row_filter), None)
        return [replace(part, has_entries=False) for part in slices]

    def _locate_all(self, cluster: Cluster, plan: GroupPlan, offsets: Offsets) -> list[int]:
        """Return the positions of the messages at these offsets, no positions if one is unknown."""
        replicas = cluster.reader(plan.group)
        positions: list[int] = []
        for queue, offset in offsets.items():
            try:
                position = locate(replicas, queue, offset, self._options.roles, plan.commit)
            except DeniedError:
                return []  # the right to read the log is enough: the read just takes in more of it
            if position is None or not plan.created[queue.topic] <= position < plan.commit:
                return []
            positions.append(position)
        return positions

    def _request_cut_plan(self, cluster: Cluster, group: str, topics: list[str], low: int, high: int) -> GroupPlan:
        """Return a plan with cuts from byte `low` on, at distances by the bytes up to `high` and the options."""
        uncut_plan = cluster.plan(group, topics)
        slice_count = max(self._options.min_partitions or 0, DEFAULT_SLICES)
        slice_bytes = (min(uncut_plan.commit, high) - max(uncut_plan.first_position, low)) // slice_count
        slice_bytes = min(max(slice_bytes, MIN_SLICE_BYTES), MAX_SLICE_BYTES)
        times = self._pushed.timestamp.low is not None or self._pushed.timestamp.high is not None
        return cluster.plan(group, topics, slice_bytes=slice_bytes, start=low, times=times)


def micro_batch_slices(
    options: ReadOptions, cluster: Cluster, plans: Mapping[str, GroupPlan], ranges: Mapping[Queue, tuple[int, int]]
) -> list[LogSlice | QueueRange]:
    """Return tasks that read these offsets from slices of the log, or by queues if they cannot be located there."""
    planner = BatchPlanner(options, PushedFilters())
    parts: list[LogSlice | QueueRange] = []
    for group in _group_names(ranges):
        group_ranges = {queue: offsets for queue, offsets in ranges.items() if queue.group == group}
        slices = planner.slices_between(cluster, plans[group], group_ranges)
        parts += queue_ranges(options, plans, group_ranges, options.row_filter) if slices is None else slices
    return parts


def queue_ranges(
    options: ReadOptions,
    plans: Mapping[str, GroupPlan],
    ranges: Mapping[Queue, tuple[int, int]],
    row_filter: RowFilter,
) -> list[QueueRange]:
    """Return the tasks that read these offsets queue by queue."""
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
    """Return the facts for all tasks on one broker group."""
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
        bad_records=options.bad_records,
        group_identity=plan.group_identity,
    )


def _select_slices(
    plan: GroupPlan,
    topics: list[TopicRange],
    high: int,
    row_filter: RowFilter,
    first_preference: int,
    source: Source,
    pin: str | None,
) -> list[LogSlice]:
    """Return the slices that can hold wanted records, by the topics' begins, byte `high` and the wanted times."""
    slices: list[LogSlice] = []
    lowest = min((topic.first_position for topic in topics), default=plan.commit)
    for cut_number, cut in enumerate(plan.cuts):
        next_cut = plan.cuts[cut_number + 1] if cut_number + 1 < len(plan.cuts) else None
        end = plan.commit if next_cut is None else next_cut.position
        if (
            end <= lowest
            or cut.position >= min(end, high)
            or not _may_hold_rows(row_filter, cut.min_time, cut.max_time)
        ):
            continue
        slices.append(
            LogSlice(
                source=source,
                start=cut.position,
                end=end,
                index=cut.log_index,
                previous_chain=cut.previous_chain,
                end_chain=None if next_cut is None else next_cut.previous_chain,
                topics=topics,
                pin=pin,
                preference=first_preference + len(slices),
            )
        )
    return slices


def _may_hold_rows(row_filter: RowFilter, min_time: int | None, max_time: int | None) -> bool:
    if row_filter.from_ms is None and row_filter.to_ms is None:
        return True
    if min_time is None or max_time is None:
        return False  # the plan has times, and there is no record
    return (row_filter.from_ms is None or max_time >= row_filter.from_ms) and (
        row_filter.to_ms is None or min_time < row_filter.to_ms
    )


def starting_offsets(options: ReadOptions, cluster: Cluster, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    """Return the offsets at which reading starts, by the options. Raises `OptionError`."""
    if options.starting_times is None:
        return _resolve_position(options.starting, bounds)
    times = _resolve_times(options.starting_times, bounds)
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
    """Return the exclusive end of reading, by the options. Raises `OptionError`."""
    if options.ending_times is None:
        return _resolve_position(options.ending, bounds)
    offsets = cluster.offsets_at(_resolve_times(options.ending_times, bounds))
    return {queue: min(offset, bounds[queue].end) for queue, offset in offsets.items()}


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
    """Return the start within the kept offsets. Raises `DataLossError` if another start must fail."""
    if first <= start <= end:
        return start
    if fail_on_data_loss:
        problem = f"below the first kept offset {first}" if start < first else f"beyond the end {end}"
        raise DataLossError(f"offset {start} of {queue} is {problem}")
    return min(max(start, first), end)


def split_ranges(
    ranges: Mapping[Queue, tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> list[tuple[Queue, int, int]]:
    """Return ranges of queues for tasks: one per queue, or several for a queue with more than its share.

    As in Spark's Kafka source, no part is larger than `max_records`. The parts are then divided in proportion to their
    size until there are about `min_partitions`.
    """
    parts: list[tuple[Queue, int, int]] = []
    for queue, (start, end) in sorted(ranges.items()):
        pieces = 1 if max_records is None else -(-(end - start) // max_records)
        parts += _split_evenly(queue, start, end, pieces)
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(end - start for _, start, end in parts)
    divided: list[tuple[Queue, int, int]] = []
    for queue, start, end in parts:
        share = -(-(end - start) * min_partitions // total)
        divided += _split_evenly(queue, start, end, min(share, end - start))
    return divided


def _split_evenly(queue: Queue, start: int, end: int, count: int) -> Iterable[tuple[Queue, int, int]]:
    size = end - start
    for piece in range(count):
        low, high = start + size * piece // count, start + size * (piece + 1) // count
        if low < high:
            yield queue, low, high


def _resolve_position(position: Position, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    numbers = dict.fromkeys(bounds, position) if isinstance(position, int) else position.resolve(bounds)
    bound_indexes = {EARLIEST: 0, LATEST: 1}
    return {
        queue: bounds[queue][bound_indexes[number]] if number in bound_indexes else number
        for queue, number in numbers.items()
    }


def _resolve_times(times: int | QueueNumbers, bounds: Mapping[Queue, QueueBounds]) -> Offsets:
    return dict.fromkeys(bounds, times) if isinstance(times, int) else times.resolve(bounds)


def _group_names(queues: Iterable[Queue]) -> list[str]:
    return sorted({queue.group for queue in queues})


def pin_queues(options: ReadOptions, name: str) -> None:
    """Pin the messages for a read queue by queue, for the longest lease without renewal."""
    with closing(Cluster(options)) as cluster:
        queues = cluster.queues()
        plans = {group: cluster.plan(group, {queue.topic for queue in queues}) for group in _group_names(queues)}
        lowest = BatchPlanner(options, PushedFilters()).lowest_positions(cluster, plans, queues)
        for group, position in lowest.items():
            try:
                pinned(cluster, options.namesrv, group, name, position, MAX_LEASE_MS)
            except RefusedError as error:
                if error.code != TRIMMED:  # the read itself notices trimmed messages
                    raise
