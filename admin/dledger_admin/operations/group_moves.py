"""Moves of a group's offsets, and what they skip or bring again."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from dledger_client import Admin, QueueStatus, StartFrom


class AtOffset(NamedTuple):
    """An offset to move to; a queue that ends before it, or begins behind it, is moved to its end or beginning."""

    offset: int


class NewOffset(msgspec.Struct, frozen=True):
    """One queue in the result of `group reset`."""

    topic: str
    broker_group: str
    queue_id: int
    offset: int


async def what_a_group_loses(admin: Admin, group: str) -> list[str]:
    """Describe the offsets that go with a group, a line for each topic."""
    lags_by_topic: dict[str, list[int]] = {}
    for status in await admin.progress(group):
        if status.committed is not None:
            lags_by_topic.setdefault(status.queue.topic, []).append(status.lag)
    lines = [
        f"its offsets in {len(lags)} queues of topic {topic}, with {sum(lags)} messages that it has not consumed"
        for topic, lags in sorted(lags_by_topic.items())
    ]
    return [f"consumer group {group}", *lines]


async def what_a_move_does(
    admin: Admin, group: str, topic: str | None, to: StartFrom | AtOffset, queue_id: int | None
) -> list[str]:
    """Describe where a group is in each queue, and what moving it there skips or brings again."""
    lines = []
    for status in await admin.progress(group, topic):
        if queue_id not in (None, status.queue.queue_id):
            continue
        current = status.first if status.committed is None else status.committed
        place = f"queue {status.queue.broker_group}/{status.queue.queue_id} of {status.queue.topic}"
        lines.append(f"offset {current} of {group} in {place}: {_describe_move(status, current, to)}")
    return lines or [f"offsets of {group}: it has read no such queue yet"]


async def what_a_clone_moves(admin: Admin, source: str, target: str, topic: str | None) -> list[str]:
    """Describe the offsets of group `target` that give way to those of group `source`."""
    if target not in await admin.groups():
        return []
    goals = {one.queue: one.committed for one in await admin.progress(source, topic)}
    lines = []
    for one in await admin.progress(target, topic):
        goal = goals.get(one.queue)
        if None not in (goal, one.committed) and goal != one.committed:
            where = f"queue {one.queue.broker_group}/{one.queue.queue_id} of {one.queue.topic}"
            lines.append(f"offset {one.committed} of {target} in {where}: it goes on at {goal}, as {source}")
    return lines


def _describe_move(status: QueueStatus, current: int, to: StartFrom | AtOffset) -> str:
    if isinstance(to, AtOffset):
        target = min(max(to.offset, status.first), status.end)
    elif isinstance(to, str):
        target = status.first if to == "first" else status.end
    else:
        at = datetime.fromtimestamp(to / 1000).astimezone().isoformat()
        return f"it goes on at the first message from {at} on"
    if target > current:
        return f"it goes on at {target} and skips {target - current} messages"
    return f"it goes on at {target}, and {current - target} messages come again"


async def move(
    admin: Admin, group: str, topic: str | None, to: StartFrom | AtOffset, queue_id: int | None
) -> list[NewOffset]:
    """Move a group in a topic, or in all that it reads. Return its new offsets, sorted by topic and queue."""
    topics = [topic] if topic else sorted({status.queue.topic for status in await admin.progress(group)})
    moved: list[NewOffset] = []
    for name in topics:
        if isinstance(to, AtOffset):
            offsets = await _move_to_offset(admin, group, name, to.offset, queue_id)
        else:
            new_offsets = await admin.reset_offsets(group, name, to, queue_id=queue_id)
            offsets = [NewOffset(*queue, offset) for queue, offset in sorted(new_offsets.items())]
        moved += offsets
    return moved


async def _move_to_offset(admin: Admin, group: str, topic: str, offset: int, queue_id: int | None) -> list[NewOffset]:
    moved: list[NewOffset] = []
    for status in await admin.offsets(group, topic):
        if queue_id in (None, status.queue.queue_id):
            target = min(max(offset, status.first), status.end)
            await admin.set_offset(group, status.queue, target)
            moved.append(NewOffset(*status.queue, target))
    return moved
