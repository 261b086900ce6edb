"""Shares of a topic's queues among the members of a consumer group, as RocketMQ's clients and brokers compute them.

Whoever computes them gets the same from the same members and queues: both are sorted first. Who is no member gets
nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, Self, TypeVar


class Ordered(Protocol):
    """Queues of one topic, however they are written, sort by broker group and then by queue id."""

    def __lt__(self, other: Self, /) -> bool: ...


QueueT = TypeVar("QueueT", bound=Ordered)


def average_share(client_id: str, client_ids: Collection[str], queues: Collection[QueueT]) -> list[QueueT]:
    """Contiguous shares of equal size, the first members getting one more (`AVG`, RocketMQ's default)."""
    members, ordered = sorted(set(client_ids)), sorted(queues)
    if client_id not in members:
        return []
    index = members.index(client_id)
    share, extra = divmod(len(ordered), len(members))
    start = index * share + min(index, extra)
    return ordered[start : start + share + (index < extra)]


def circle_share(client_id: str, client_ids: Collection[str], queues: Collection[QueueT]) -> list[QueueT]:
    """Queues dealt like cards (`AVG_BY_CIRCLE`): those with the lowest ids do not all go to one member."""
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    return sorted(queues)[members.index(client_id) :: len(members)]
