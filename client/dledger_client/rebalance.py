"""Strategies that share the queues of a topic among the members of a consumer group.

Every member computes the same shares from the same sorted lists, so that no coordinator is needed. The results are
those of RocketMQ's Java clients, whose members may be in the same group if they use the same strategy:

| here | of Java | shares |
|---|---|---|
| `"average"` | `AllocateMessageQueueAveragely` | contiguous, the first members have one more; the default |
| `"circle"` | `AllocateMessageQueueAveragelyByCircle` | one queue after the other to one member after the other |
| `"consistent-hash"` | `AllocateMessageQueueConsistentHash` | by a hash ring: who comes or goes moves few queues |
| `allocate_by_config(queues)` | `AllocateMessageQueueByConfig` | what each member is told, whoever else there is |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final, Literal, TypeAlias

from dledger_remoting.shares import average_share, circle_share
from dledger_remoting.topics import is_retry_topic

from .callbacks import check_strategy
from .messages import MessageQueue, queues_in

Strategy: TypeAlias = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""(own client id, all client ids, all queues) to the own queues."""

StrategyName: TypeAlias = Literal["average", "circle", "consistent-hash"]

VIRTUAL_NODES: Final = 10
"""Points per member on the hash ring."""


def allocate_average(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Contiguous shares of equal size, the first members getting one more: RocketMQ's default."""
    return average_share(client_id, client_ids, queues)


def allocate_circle(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Queues dealt like cards: those of one broker group, or with the lowest ids, do not all go to one member."""
    return circle_share(client_id, client_ids, queues)


def allocate_consistent_hash(
    client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Shares by a hash ring: a member that comes or goes moves few queues of the others."""
    members = tuple(sorted(set(client_ids)))
    if client_id not in members:
        return []
    points, owners = _ring(members)
    return [
        queue for queue in sorted(queues) if owners[bisect_left(points, _hash(_text(queue))) % len(points)] == client_id
    ]


def allocate_by_config(queues: Iterable[tuple[str, str, int]]) -> Strategy:
    """A strategy by which a member reads the queues given, each (topic, broker group, queue id), and no others.

    Who starts the members sees to it that together they read all. Retry topics, which nobody lists, are shared by
    `allocate_average`. Raises `InvalidArgumentError` for what is no queue.
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
    """The strategy itself, or the one of that name. Raises `InvalidArgumentError` for a function of another form."""
    return check_strategy(strategy) if callable(strategy) else STRATEGIES[strategy]


@lru_cache(maxsize=64)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Points in their order, and whose each is. Of two members with one point the later one has it."""
    ring = {_hash(f"{member}-{copy}"): member for member in members for copy in range(VIRTUAL_NODES)}
    points = sorted(ring)
    return points, [ring[point] for point in points]


def _text(queue: MessageQueue) -> str:
    """What Java hashes of a queue."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_group}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    """The first 4 bytes of the MD5, as Java's `ConsistentHashRouter` takes them."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
