"""Choice of how a stream with `mode=auto` reads: slices of the log if its topics are most of it, else queue by queue.

The log is sampled at a few places. A stream that reads slices asks where its messages lie, so that it needs the rights
of both ways.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow.compute as pc

from .entries import verify_entries
from .errors import CorruptDataError, DeniedError
from .offsets import Queue, StreamMode
from .options import ReadOptions
from .plans import TRIMMED, Cluster, GroupPlan, identity_ext
from .queues import locate
from .records import RecordFinder
from .segments import READ_RANGE
from .wanted import TopicRange
from .wire import Response

_logger = logging.getLogger(__name__)

MIN_SHARE: Final = 0.5
"""Minimum share of a broker group's sampled records, by bytes, that a stream's topics have if it reads slices."""
SAMPLES: Final = 4
SAMPLE_BYTES: Final = 1 << 20
_SIZE_PLACE: Final = 0
_SUCCESS: Final = 0


def choose(options: ReadOptions, cluster: Cluster, queues: Iterable[Queue]) -> StreamMode:
    """Return the mode in which a stream of these queues reads from now on.

    It is `queues` if a right for slices is missing, or if there is no message yet.
    """
    by_group: dict[str, list[Queue]] = {}
    for queue in queues:
        by_group.setdefault(queue.group, []).append(queue)
    try:
        shares = [
            share
            for group, group_queues in by_group.items()
            if (share := _measure_share(options, cluster, group, group_queues)) is not None
        ]
    except DeniedError as error:
        _logger.warning("event=stream_mode_chosen mode=queues reason=%r", f"no right to read slices: {error}")
        return "queues"
    mode: StreamMode = "segments" if shares and min(shares) >= MIN_SHARE else "queues"
    _logger.info("event=stream_mode_chosen mode=%s lowest_share=%.2f", mode, min(shares, default=0.0))
    return mode


def _measure_share(options: ReadOptions, cluster: Cluster, group: str, queues: list[Queue]) -> float | None:
    """Return the share of the log's sampled bytes that belong to the topics of queues; None without a message."""
    topics = sorted({queue.topic for queue in queues})
    uncut_plan = cluster.plan(group, topics)
    queue_with_messages = next(
        (queue for queue in queues if (bounds := uncut_plan.bounds.get(queue)) and bounds.first < bounds.end), None
    )
    if queue_with_messages is not None:
        locate(
            cluster.reader(group),
            queue_with_messages,
            uncut_plan.bounds[queue_with_messages].first,
            options.roles,
            uncut_plan.commit,
        )
    step = max((uncut_plan.commit - uncut_plan.first_position) // SAMPLES, SAMPLE_BYTES)
    plan = cluster.plan(group, topics, slice_bytes=step, start=uncut_plan.first_position)
    finder = RecordFinder([TopicRange(topic, {}) for topic in topics], reads_bodies=False)
    wanted_bytes = total_bytes = 0
    for data, index, chain, position in _read_samples(options, cluster, plan):
        try:
            spans, _ = verify_entries(data, position, index, chain)
        except CorruptDataError:  # a read for rows has this place repaired
            continue
        for records in finder.find(data, spans):
            sizes = records.heads.integers(_SIZE_PLACE, "i")
            total_bytes += pc.sum(sizes).as_py()
            wanted_bytes += pc.sum(sizes.filter(pc.less(records.topics, len(topics)))).as_py() or 0
    return wanted_bytes / total_bytes if total_bytes else None


def _read_samples(options: ReadOptions, cluster: Cluster, plan: GroupPlan) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield the bytes at a few cuts, each with its first entry's index, the previous chain crc and its position."""
    for cut in plan.cuts[-SAMPLES:]:
        if cut.position >= plan.commit:
            continue
        ext = {
            "start": str(cut.position),
            "end": str(plan.commit),
            "roles": options.roles,
            "maxBytes": str(SAMPLE_BYTES),
            "minCommit": str(plan.commit),
            **identity_ext(plan.group_identity),
        }
        answer = cluster.reader(plan.group).request(READ_RANGE, ext, _refusal)
        if answer.code == _SUCCESS:
            yield answer.body, cut.log_index, cut.previous_chain, cut.position


def _refusal(answer: Response) -> str | None:
    """Return the reason for asking another node, None without any. A trimmed place gives no sample."""
    return None if answer.code in (_SUCCESS, TRIMMED) else f"code {answer.code}: {answer.remark}"
