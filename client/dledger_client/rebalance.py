"""Strategies that share the queues of a topic among the members of a consumer group.

Every member computes the same shares from the same sorted lists, so that no coordinator is needed. Members of other
RocketMQ clients take part if they use the same strategy; `average` is theirs too.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final, Literal, TypeAlias

from .callbacks import check_strategy
from .messages import MessageQueue

Strategy: TypeAlias = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""(own client id, all client ids, all queues) to the own queues."""

StrategyName: TypeAlias = Literal["average", "consistent-hash"]

VIRTUAL_NODES: Final = 64
"""Points per member on the hash ring; more of them even out the shares."""


def allocate_average(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Contiguous shares of equal size, the first members getting one more: RocketMQ's default."""
    members, ordered = sorted(set(client_ids)), sorted(queues)
    if client_id not in members:
        return []
    index = members.index(client_id)
    share, extra = divmod(len(ordered), len(members))
    start = index * share + min(index, extra)
    return ordered[start : start + share + (index < extra)]


def allocate_consistent_hash(
    client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Shares by a hash ring: a member that comes or goes moves few queues of the others."""
    members = tuple(sorted(set(client_ids)))
    if client_id not in members:
        return []
    points, owners = _ring(members)
    return [queue for queue in sorted(queues) if owners[bisect(points, _hash(str(queue))) % len(points)] == client_id]


STRATEGIES: Final[dict[StrategyName, Strategy]] = {
    "average": allocate_average,
    "consistent-hash": allocate_consistent_hash,
}


def strategy_named(strategy: StrategyName | Strategy) -> Strategy:
    """The strategy itself, or the one of that name. Raises `InvalidArgumentError` for a function of another form."""
    return check_strategy(strategy) if callable(strategy) else STRATEGIES[strategy]


@lru_cache(maxsize=64)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    points = sorted((_hash(f"{member}#{copy}"), member) for member in members for copy in range(VIRTUAL_NODES))
    return [point for point, _ in points], [member for _, member in points]


def _hash(text: str) -> int:
    """The same on every machine and in every process, unlike `hash`."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "big")
