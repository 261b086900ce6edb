"""Write aliases of broker groups: ports, one of each node, that routes list behind the group itself.

A node reports its alias when it registers. The alias stays when the node goes, while the group's leader counts the node
as a member. There are two reasons. A route that changed with each node would make producers look for the topic anew. A
route that was read before a failure could name only nodes that are dead after it.

An alias stores a message in another queue than the client chose. An ordered topic therefore has no alias, even if its
broker registers one. The same holds for a topic with a value in `ORDER_TOPIC_CONFIG`, because RocketMQ's tools send
`order=false` with its other changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.route import MASTER_ID, BrokerData, QueueData, alias_name
from dledger_remoting.topics import PERM_WRITE, WRITE_ALIASES_ATTRIBUTE, TopicConfig, is_ordered, is_writable

from .records import Alias, Group

MAX_ALIASES: Final = 64
"""Maximum number of aliases of one group that are listed. It is bounded because any client may register nodes."""


def has_aliases(config: TopicConfig) -> bool:
    """Return whether a topic is registered as one with aliases.

    Brokers older than the rule about order may register aliases for any topic.
    """
    return config.attributes.get(WRITE_ALIASES_ATTRIBUTE) == "true" and not is_ordered(config)


def aliases_after(group: Group, header: RegisterBrokerHeader) -> dict[int, Alias]:
    """Return the aliases of a group after a registration.

    The registering node has the alias that it reports, or none. Aliases of nodes that the leader does not count as
    members go.
    """
    members = None
    if header.broker_id == MASTER_ID and header.member_ids is not None:
        members = frozenset(header.member_ids.split(","))
    remaining = {
        number: alias
        for number, alias in group.aliases.items()
        if alias.broker_addr != header.broker_addr
        and alias.node_id != header.node_id
        and (members is None or alias.node_id in members)
    }
    number, address, node_id = header.alias_number, header.alias_addr, header.node_id
    if number is not None and address and node_id and (number in remaining or len(remaining) < MAX_ALIASES):
        remaining[number] = Alias(node_id, header.broker_addr, address)
    return dict(sorted(remaining.items()))


def aliases_of_topic(
    topic: str, groups: Mapping[str, Group], queues: Mapping[str, QueueData], shown: Mapping[str, BrokerData]
) -> list[tuple[QueueData, BrokerData]]:
    """Return the entries of a topic's route behind the groups that it shows: aliases of the groups whose topic has
    them.
    """
    return [
        entry
        for name, data in shown.items()
        if (group := groups.get(name)) is not None and topic in group.aliased
        for entry in alias_entries(group, queues[name], data)
    ]


def alias_entries(group: Group, queues: QueueData, shown: BrokerData) -> Iterator[tuple[QueueData, BrokerData]]:
    """Yield a route's entries for a group's aliases: all but the alias of the node that it shows as the leader.

    Aliases take messages for the whole group, if the group itself does.
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
