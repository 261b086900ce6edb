"""Shares of a topic's queues among the members of a consumer group, as RocketMQ's clients and brokers compute them.

Members and queues are sorted first, so every member computes the same shares. A client that is not a member gets
nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, Self, TypeVar


class Ordered(Protocol):
    """A queue of one topic. Queues sort by broker group and then by queue id."""

    def __lt__(self, other: Self, /) -> bool: ...


QueueT = TypeVar("QueueT", bound=Ordered)


def average_share(client_id: str, client_ids: Collection[str], queues: Collection[QueueT]) -> list[QueueT]:
    """Return a contiguous share.

    All have equal size, but the first members get one more (`AVG`, RocketMQ's default).
    """
    members, ordered = sorted(set(client_ids)), sorted(queues)
    if client_id not in members:
        return []
    index = members.index(client_id)
    share, extra = divmod(len(ordered), len(members))
    start = index * share + min(index, extra)
    return ordered[start : start + share + (index < extra)]


def circle_share(client_id: str, client_ids: Collection[str], queues: Collection[QueueT]) -> list[QueueT]:
    """Return a share of queues dealt like cards (`AVG_BY_CIRCLE`), so the lowest ids do not all go to one member."""
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    return sorted(queues)[members.index(client_id) :: len(members)]
