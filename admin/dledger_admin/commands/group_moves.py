"""Moves of a group's offsets, as `dledger group reset` and `skip` do them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dledger_client import Admin, StartFrom

from ..errors import WrongUsageError
from .options import time_ms

_AT_OFFSET = "offset:"


class AtOffset(NamedTuple):
    """An offset to move to; a queue that ends before it, or begins behind it, is moved to its end or beginning."""

    offset: int


class NewOffset(msgspec.Struct, frozen=True):
    """One queue in the result of `group reset`."""

    topic: str
    broker_group: str
    queue_id: int
    offset: int


def start_point(text: str) -> StartFrom | AtOffset:
    """Where to move to; a date without a time zone is in local time. Raises `WrongUsageError`."""
    if text in ("first", "beginning"):
        return "first"
    if text in ("last", "end"):
        return "last"
    if text.startswith(_AT_OFFSET):
        number = text.removeprefix(_AT_OFFSET)
        if not number.isdecimal():
            raise WrongUsageError(f"--to {text!r}: an offset is a number that is not below 0, such as offset:42")
        return AtOffset(int(number))
    return time_ms("--to", text, otherwise="beginning, end, offset:N, ")


async def move(
    admin: Admin, group: str, topic: str | None, to: StartFrom | AtOffset, queue_id: int | None
) -> list[NewOffset]:
    """Move a group in a topic, or in all that it reads; where it goes on, sorted by topic and queue."""
    topics = [topic] if topic else sorted({one.queue.topic for one in await admin.progress(group)})
    moved: list[NewOffset] = []
    for name in topics:
        if isinstance(to, AtOffset):
            offsets = await _move_to_offset(admin, group, name, to.offset, queue_id)
        else:
            found = await admin.reset_offsets(group, name, to, queue_id=queue_id)
            offsets = [NewOffset(*queue, offset) for queue, offset in sorted(found.items())]
        moved += offsets
    return moved


async def _move_to_offset(admin: Admin, group: str, topic: str, offset: int, queue_id: int | None) -> list[NewOffset]:
    moved: list[NewOffset] = []
    for one in await admin.offsets(group, topic):
        if queue_id in (None, one.queue.queue_id):
            target = min(max(offset, one.first), one.end)
            await admin.set_offset(group, one.queue, target)
            moved.append(NewOffset(*one.queue, target))
    return moved
