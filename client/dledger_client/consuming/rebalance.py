"""Strategies that share the queues of a topic among the members of a consumer group.

Every member computes the same shares from the same sorted lists, so that no coordinator is needed. The results are
those of RocketMQ's Java clients. Such clients may be in the same group if they use the same strategy:

| here | of Java | shares |
|---|---|---|
| `"average"` | `AllocateMessageQueueAveragely` | contiguous, the first members have one more; the default |
| `"circle"` | `AllocateMessageQueueAveragelyByCircle` | one queue after the other to one member after the other |
| `"consistent-hash"` | `AllocateMessageQueueConsistentHash` | by a hash ring: a new or lost member moves few queues |
| `allocate_by_config(queues)` | `AllocateMessageQueueByConfig` | the queues that each member is told |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final, Literal, TypeAlias

from dledger_remoting.shares import average_share, circle_share
from dledger_remoting.topics import is_retry_topic

from ..callbacks import check_strategy
from ..messages import MessageQueue, queues_in

Strategy: TypeAlias = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""Function from (own client id, all client ids, all queues) to the own queues."""

StrategyName: TypeAlias = Literal["average", "circle", "consistent-hash"]

VIRTUAL_NODES: Final = 10
"""Number of points per member on the hash ring."""


def allocate_average(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return a contiguous share, as RocketMQ does by default.

    If the queues cannot be divided equally, each of the first members gets one queue more.
    """
    return average_share(client_id, client_ids, queues)


def allocate_circle(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return a share of queues dealt like cards, so that one member does not get all queues of a group, or all lowest
    ids.
    """
    return circle_share(client_id, client_ids, queues)


def allocate_consistent_hash(
    client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Return a share by a hash ring: a member that joins or leaves moves few queues of the others."""
    members = tuple(sorted(set(client_ids)))
    if client_id not in members:
        return []
    points, owners = _build_ring(members)
    return [
        queue
        for queue in sorted(queues)
        if owners[bisect_left(points, _hash(_format_queue(queue))) % len(points)] == client_id
    ]


def allocate_by_config(queues: Iterable[tuple[str, str, int]]) -> Strategy:
    """Return a strategy by which a member reads exactly the given queues, each (topic, broker group, queue id).

    The operator must make sure that the members together read all queues. Retry topics, which are not listed, are
    shared by `allocate_average`. Raises `InvalidArgumentError` for an element other than a queue.
    """
    wanted = frozenset(queues_in(queues))

    def allocate(client_id: str, client_ids: Sequence[str], known: Sequence[MessageQueue]) -> list[MessageQueue]:
        if known and is_retry_topic(known[0].topic):
            return allocate_average(client_id, client_ids, known)
        return [queue for queue in sorted(known) if queue in wanted]

    return allocate


STRATEGIES: Final[dict[StrategyName, Strategy]] = {
    "average": allocate_average,
    "circle": allocate_circle,
    "consistent-hash": allocate_consistent_hash,
}


def strategy_named(strategy: StrategyName | Strategy) -> Strategy:
    """Return the strategy, given itself or by name. Raises `InvalidArgumentError` for a function of another form."""
    return check_strategy(strategy) if callable(strategy) else STRATEGIES[strategy]


@lru_cache(maxsize=64)
def _build_ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Return the points of the ring in their order, and the owner of each.

    If two members share a point, the later one owns it.
    """
    ring = {_hash(f"{member}-{copy}"): member for member in members for copy in range(VIRTUAL_NODES)}
    points = sorted(ring)
    return points, [ring[point] for point in points]


def _format_queue(queue: MessageQueue) -> str:
    """Return the text of a queue that Java hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_group}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    """Return the first 4 bytes of the MD5, as Java's `ConsistentHashRouter` does."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
