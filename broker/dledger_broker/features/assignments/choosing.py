"""Choice of the queues that a member of a consumer group consumes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from dledger_broker.features.assignments.table import Mode
from dledger_remoting.route import QueueData
from dledger_remoting.shares import average_share, circle_share
from dledger_remoting.topics import MessageQueue, TopicConfig, is_readable

Strategy: TypeAlias = Callable[[str, Collection[str], Collection[MessageQueue]], Sequence[MessageQueue]]
"""Function from (client id, all client ids, all queues) to the client's queues."""

ANY_QUEUE: Final = -1
"""Queue id that means all queues of a topic in a broker group."""
STRATEGIES: Final[Mapping[str, Strategy]] = {"AVG": average_share, "AVG_BY_CIRCLE": circle_share}
"""Strategies by the names that clients use. RocketMQ's broker has the same two."""
DEFAULT_STRATEGY: Final = "AVG"


def readable_queues(
    topic: str, broker_group: str, own: TopicConfig | None, others: Iterable[QueueData]
) -> list[MessageQueue]:
    """Return the readable queues of a topic. `own` is this broker group's topic, `others` are from name servers."""
    places = [(broker_group, own.read_queue_nums, own.perm)] if own is not None else []
    places += [
        (place.broker_name, place.read_queue_nums, place.perm) for place in others if place.broker_name != broker_group
    ]
    return [
        MessageQueue(name, queue_id, topic)
        for name, count, perm in places
        if is_readable(perm)
        for queue_id in range(count)
    ]


def share(
    strategy: Strategy, mode: Mode, client_id: str, client_ids: Collection[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Return the queues of a member of a consumer group.

    In mode POP a member also pops the queues of the `pop_share_queues` members after it. So other members take over the
    queues of a member that hangs. They get the messages that it has popped once their invisible time has passed. With
    more members than queues, each member has one queue.
    """
    members = sorted(set(client_ids))
    if not mode.pops:
        return list(strategy(client_id, members, queues))
    if mode.pop_share_queues <= 0 or mode.pop_share_queues + 1 >= len(members):
        return sorted({MessageQueue(queue.broker_name, ANY_QUEUE, queue.topic) for queue in queues})
    if client_id not in members:
        return []
    index = members.index(client_id)
    if len(members) > len(queues):
        return [sorted(queues)[index % len(queues)]] if queues else []
    turn = [members[(index + behind) % len(members)] for behind in range(mode.pop_share_queues + 1)]
    return sorted({queue for member in turn for queue in strategy(member, members, queues)})
