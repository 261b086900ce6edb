"""Write aliases of broker groups: the ports, one of each node, that routes list behind the group itself.

A node tells of its own when it registers. It is kept when the node goes, for as long as the group's leader counts the
node among its members: a route that changed with every node that comes and goes would make producers look for the topic
anew, and one that was read before a failure could name nobody who is alive after it.

An alias takes a message into another queue than the client chose. A topic that is ordered has none, whatever its broker
registers; so is one with a value in `ORDER_TOPIC_CONFIG`: RocketMQ's tools send `order=false` with other changes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.route import MASTER_ID, BrokerData, QueueData, alias_name
from dledger_remoting.topics import PERM_WRITE, WRITE_ALIASES_ATTRIBUTE, TopicConfig, is_ordered, is_writable

from .records import Alias, Group

MAX_ALIASES: Final = 64
"""Of one group; further ones are not listed: whoever can connect can register nodes."""


def has_aliases(config: TopicConfig) -> bool:
    """Whether a topic is registered as one that has them. A broker that is older than this rule may say so of any."""
    return config.attributes.get(WRITE_ALIASES_ATTRIBUTE) == "true" and not is_ordered(config)


def aliases_after(group: Group, header: RegisterBrokerHeader) -> dict[int, Alias]:
    """The aliases of a group after a registration.

    The node has the one that it tells of, or none; those of nodes that its leader does not count as members are gone.
    """
    members = None
    if header.broker_id == MASTER_ID and header.member_ids is not None:
        members = frozenset(header.member_ids.split(","))
    kept = {
        number: alias
        for number, alias in group.aliases.items()
        if alias.broker_addr != header.broker_addr
        and alias.node_id != header.node_id
        and (members is None or alias.node_id in members)
    }
    number, address, node_id = header.alias_number, header.alias_addr, header.node_id
    if number is not None and address and node_id and (number in kept or len(kept) < MAX_ALIASES):
        kept[number] = Alias(node_id, header.broker_addr, address)
    return dict(sorted(kept.items()))


def aliases_of_topic(
    topic: str, groups: Mapping[str, Group], queues: Mapping[str, QueueData], shown: Mapping[str, BrokerData]
) -> list[tuple[QueueData, BrokerData]]:
    """What the route of a topic lists behind the groups that it shows: aliases of those where the topic has them."""
    return [
        entry
        for name, data in shown.items()
        if (group := groups.get(name)) is not None and topic in group.aliased
        for entry in alias_entries(group, queues[name], data)
    ]


def alias_entries(group: Group, queues: QueueData, shown: BrokerData) -> Iterator[tuple[QueueData, BrokerData]]:
    """What a route lists of a group's aliases: all but that of the node which it shows as the leader.

    They take messages for the whole group, and take as much as it does.
    """
    if not is_writable(queues.perm):
        return
    leader = shown.broker_addrs.get(MASTER_ID)
    for number, alias in group.aliases.items():
        if alias.broker_addr != leader:
            name = alias_name(shown.broker_name, number)
            yield (
                QueueData(name, write_queue_nums=1, perm=PERM_WRITE, topic_sys_flag=queues.topic_sys_flag),
                BrokerData(name, shown.cluster, {MASTER_ID: alias.address}),
            )
