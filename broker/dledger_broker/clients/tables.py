"""Tables of the connected clients: each node's own, and the leader's merged view of them.

Nothing here is replicated. Every node knows the clients that heartbeat to it, with their channels; it tells the leader
(see `gossip.py`), which merges all tables. Pure: time is an argument, channels are only kept.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, Protocol, runtime_checkable

import msgspec

from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from dledger_remoting.hosts import HostAddress

CLIENT_TIMEOUT_S: Final = 120.0
"""A client that has not sent a heartbeat for so long is gone."""


class ClientRow(msgspec.Struct, frozen=True, array_like=True):
    """One client as its heartbeat describes it."""

    client_id: str
    address: str
    language: int
    version: int
    producer_groups: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]


class ClientIndex:
    """Clients by id and by group."""

    def __init__(self) -> None:
        self._rows: dict[str, ClientRow] = {}
        self._consumers: dict[str, dict[str, ConsumerData]] = {}
        self._producers: dict[str, set[str]] = {}

    @property
    def rows(self) -> Mapping[str, ClientRow]:
        """All clients by their id."""
        return self._rows

    def consumers(self, group: str) -> Mapping[str, ConsumerData]:
        """The consumers of a group by client id."""
        return self._consumers.get(group, {})

    def producers(self, group: str) -> Iterable[str]:
        """The client ids of a producer group."""
        return self._producers.get(group, ())

    def put(self, row: ClientRow) -> set[str]:
        """Add a client or replace what is known of it; returns the consumer groups that changed."""
        before = self._rows.get(row.client_id)
        if before is not None and before.consumers == row.consumers and before.producer_groups == row.producer_groups:
            self._rows[row.client_id] = row
            return set()
        changed = self.remove(row.client_id) if before is not None else set()
        self._rows[row.client_id] = row
        for consumer in row.consumers:
            self._consumers.setdefault(consumer.group_name, {})[row.client_id] = consumer
            changed.add(consumer.group_name)
        for group in row.producer_groups:
            self._producers.setdefault(group, set()).add(row.client_id)
        return changed

    def remove(self, client_id: str) -> set[str]:
        """Forget a client; returns the consumer groups that it was in."""
        row = self._rows.pop(client_id, None)
        if row is None:
            return set()
        groups = {consumer.group_name for consumer in row.consumers}  # a heartbeat may name one twice
        for group in groups:
            members = self._consumers[group]
            members.pop(client_id, None)
            if not members:
                del self._consumers[group]
        for group in set(row.producer_groups):
            self._producers[group].discard(client_id)
            if not self._producers[group]:
                del self._producers[group]
        return groups


NOTIFY_FIELD: Final = "dledgerNotify"
"""A request, or heartbeat, with this field asks for notices of new leaders on its connection."""


@runtime_checkable
class ClientChannel(Protocol):
    """The connection that a client's heartbeats come through; a request that another node passed on came over none."""

    address: HostAddress
    key: str
    """Its name, which no other channel has."""
    client_ids: set[str]
    """Who heartbeats through it."""
    serialize_type: int
    """How the newest heartbeat was encoded, and so is what the broker asks of the client."""
    wants_leader_notices: bool
    """The client asked to be told of every new leader."""

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """Send a request to the client; returns its number, which an answer to one that is not oneway repeats."""


class _Local:
    __slots__ = ("account", "channel", "seen")

    def __init__(self, channel: ClientChannel, seen: float, account: str) -> None:
        self.channel = channel
        self.seen = seen
        self.account = account


class LocalClients:
    """The clients that heartbeat to this node. `changed(client ids, consumer groups)` is told of every change."""

    def __init__(self, changed: Callable[[set[str], set[str]], None]) -> None:
        self.index = ClientIndex()
        self._locals: dict[str, _Local] = {}
        self._changed = changed

    def __len__(self) -> int:
        return len(self._locals)

    def heartbeat(
        self,
        channel: ClientChannel,
        heartbeat: HeartbeatData,
        language: int,
        version: int,
        now: float,
        account: str = "",
    ) -> ClientRow:
        """Take a heartbeat in, of an account where access control is on; returns what is known of the client now."""
        client_id = heartbeat.client_id
        known = self.index.rows.get(client_id)
        consumers = tuple(heartbeat.consumer_data_set)
        if known is not None:
            before = {consumer.group_name: consumer for consumer in reversed(known.consumers)}
            if heartbeat.is_without_sub:
                consumers = tuple(_with_known_subscriptions(one, before.get(one.group_name)) for one in consumers)
            consumers = tuple(_newest(one, before.get(one.group_name)) for one in consumers)
        row = ClientRow(
            client_id,
            str(channel.address),
            language,
            version,
            tuple(producer.group_name for producer in heartbeat.producer_data_set),
            consumers,
        )
        local = self._locals.get(client_id)
        if local is not None and local.channel is not channel:
            local.channel.client_ids.discard(client_id)
        self._locals[client_id] = _Local(channel, now, account)
        channel.client_ids.add(client_id)
        groups = self.index.put(row)
        if groups or known is None or known != row:
            self._changed({client_id}, groups)
        return row

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves one or two groups; one that is in no group any more is forgotten."""
        row = self.index.rows.get(client_id)
        if row is None:
            return
        left = msgspec.structs.replace(
            row,
            producer_groups=tuple(group for group in row.producer_groups if group != producer_group),
            consumers=tuple(consumer for consumer in row.consumers if consumer.group_name != consumer_group),
        )
        if left.producer_groups or left.consumers:
            self._changed({client_id}, self.index.put(left))
        else:
            self._forget(client_id)

    def channel_lost(self, channel: ClientChannel) -> None:
        """A connection closed: every client that used it is gone."""
        for client_id in list(channel.client_ids):
            local = self._locals.get(client_id)
            if local is not None and local.channel is channel:
                self._forget(client_id)

    def expire(self, now: float) -> None:
        """Forget clients that have been silent for too long."""
        for client_id, local in list(self._locals.items()):
            if now - local.seen > CLIENT_TIMEOUT_S:
                self._forget(client_id)

    def channels_of(self, group: str, clients: Container[str] | None) -> Iterator[ClientChannel]:
        """The channels of a consumer group's members, or of those among `clients`, each once."""
        seen: set[int] = set()
        for client_id in self.index.consumers(group):
            if clients is not None and client_id not in clients:
                continue
            channel = self._locals[client_id].channel
            if id(channel) not in seen:
                seen.add(id(channel))
                yield channel

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """The channel of a client that heartbeats to this node."""
        local = self._locals.get(client_id)
        return None if local is None else local.channel

    def account_of(self, client_id: str) -> str | None:
        """The account of a client that heartbeats to this node."""
        local = self._locals.get(client_id)
        return None if local is None else local.account

    def seen(self) -> Iterator[tuple[ClientRow, float]]:
        """Each client with the time of its last heartbeat, by client id."""
        for client_id, local in sorted(self._locals.items()):
            yield self.index.rows[client_id], local.seen

    def _forget(self, client_id: str) -> None:
        local = self._locals.pop(client_id, None)
        if local is not None:
            local.channel.client_ids.discard(client_id)
            self._changed({client_id}, self.index.remove(client_id))


def _with_known_subscriptions(consumer: ConsumerData, before: ConsumerData | None) -> ConsumerData:
    """A heartbeat without subscriptions means those of the last one."""
    if before is None or consumer.subscription_data_set:
        return consumer
    return msgspec.structs.replace(consumer, subscription_data_set=before.subscription_data_set)


def _newest(consumer: ConsumerData, before: ConsumerData | None) -> ConsumerData:
    """Of each topic's subscription the newer version counts; topics that are no longer listed are dropped."""
    if before is None:
        return consumer
    versions = {entry.topic: entry for entry in before.subscription_data_set}
    kept = [
        known if (known := versions.get(entry.topic)) is not None and known.sub_version > entry.sub_version else entry
        for entry in consumer.subscription_data_set
    ]
    return msgspec.structs.replace(consumer, subscription_data_set=kept)


class MergedClients:
    """All nodes' tables, each under its node id, as the leader answers from them."""

    def __init__(self, own_node_id: str, own: ClientIndex) -> None:
        self._tables: dict[str, ClientIndex] = {own_node_id: own}
        self._own_node_id = own_node_id

    def replace(self, node_id: str, rows: Iterable[ClientRow]) -> set[str]:
        """A node sent its whole table; returns the consumer groups whose members changed."""
        before = self._tables.get(node_id, ClientIndex())
        table = ClientIndex()
        for row in rows:
            table.put(row)
        groups = _groups(before) | _groups(table)
        return self._changed(groups, lambda: self._tables.__setitem__(node_id, table))

    def update(self, node_id: str, rows: Iterable[ClientRow], removed: Iterable[str]) -> set[str]:
        """A node sent what has changed in its table; returns the consumer groups whose members changed."""
        table = self._tables.setdefault(node_id, ClientIndex())
        rows, removed = list(rows), list(removed)
        groups = {consumer.group_name for row in rows for consumer in row.consumers}
        for client_id in [*removed, *(row.client_id for row in rows)]:
            known = table.rows.get(client_id)
            if known is not None:
                groups |= {consumer.group_name for consumer in known.consumers}

        def apply() -> None:
            for client_id in removed:
                table.remove(client_id)
            for row in rows:
                table.put(row)

        return self._changed(groups, apply)

    def forget_node(self, node_id: str) -> set[str]:
        """A node has been silent for too long; returns the consumer groups whose members changed."""
        if node_id == self._own_node_id or node_id not in self._tables:
            return set()
        return self._changed(_groups(self._tables[node_id]), lambda: self._tables.__delitem__(node_id))

    def members(self, group: str) -> list[str]:
        """The client ids of a consumer group, sorted."""
        return sorted({client_id for table in self._tables.values() for client_id in table.consumers(group)})

    def member_rows(self, group: str) -> list[ClientRow]:
        """What is known of each member of a group, by the first of the nodes that have it, sorted by client id."""
        found: dict[str, ClientRow] = {}
        for table in self._tables.values():
            for client_id in table.consumers(group):
                found.setdefault(client_id, table.rows[client_id])
        return [found[client_id] for client_id in sorted(found)]

    def nodes_of(self, client_id: str) -> list[str]:
        """The nodes that a client heartbeats to, this one first."""
        return [node_id for node_id, table in self._tables.items() if client_id in table.rows]

    def producers(self, group: str) -> Iterator[tuple[str, str]]:
        """The clients of a producer group, each as (node, client id); one that heartbeats to several comes again."""
        for node_id, table in self._tables.items():
            for client_id in table.producers(group):
                yield node_id, client_id

    def producer_rows(self, group: str) -> list[ClientRow]:
        """What is known of each client of a producer group, by the first of the nodes that have it, by client id."""
        found: dict[str, ClientRow] = {}
        for node_id, client_id in self.producers(group):
            found.setdefault(client_id, self._tables[node_id].rows[client_id])
        return [found[client_id] for client_id in sorted(found)]

    def consumer_groups_of(self, topic: str) -> set[str]:
        """The consumer groups of which a member subscribes to a topic."""
        return {
            consumer.group_name
            for table in self._tables.values()
            for row in table.rows.values()
            for consumer in row.consumers
            if any(entry.topic == topic for entry in consumer.subscription_data_set)
        }

    def consumers(self, group: str) -> Iterator[ConsumerData]:
        """What the members of a group say of it; a client that heartbeats to several nodes comes several times."""
        for table in self._tables.values():
            yield from table.consumers(group).values()

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The newest subscription of a group to a topic, None if no member has one."""
        newest: SubscriptionData | None = None
        for consumer in self.consumers(group):
            for entry in consumer.subscription_data_set:
                if entry.topic == topic and (newest is None or entry.sub_version > newest.sub_version):
                    newest = entry
        return newest

    def is_news(self, client_id: str, group: str) -> bool:
        """True unless other nodes say the same of a client in a group as this node's table says now.

        Consumers heartbeat to every node: only the first to hear of a change tells the group.
        """
        own = self._tables[self._own_node_id].consumers(group).get(client_id)
        others = [
            table.consumers(group)[client_id]
            for node_id, table in self._tables.items()
            if node_id != self._own_node_id and client_id in table.consumers(group)
        ]
        if not others:
            return True
        return own is not None and all(_subscribed(own) != _subscribed(other) for other in others)

    def rows(self) -> Iterator[ClientRow]:
        """What every node told of each of its clients; some are connected to several."""
        for table in self._tables.values():
            yield from table.rows.values()

    def told_by(self, node_id: str, groups: Iterable[str]) -> set[str]:
        """Members of these groups that a node tells what changed: each is told by the first of the nodes that have it.

        The first is this node; the others follow in the order in which they were heard of.
        """
        others = list(self._tables)
        earlier = [self._tables[other] for other in others[: others.index(node_id)]] if node_id in self._tables else []
        table = self._tables.get(node_id, ClientIndex())
        return {
            client_id
            for group in groups
            for client_id in table.consumers(group)
            if not any(client_id in other.consumers(group) for other in earlier)
        }

    def is_online(self, group: str) -> bool:
        """True if the group has members."""
        return any(table.consumers(group) for table in self._tables.values())

    def is_broadcasting(self, group: str) -> bool:
        """True if the group's members each want every message."""
        return any(consumer.message_model is MessageModel.BROADCASTING for consumer in self.consumers(group))

    def _changed(self, groups: set[str], apply: Callable[[], None]) -> set[str]:
        before = {group: self._fingerprint(group) for group in groups}
        apply()
        return {group for group in groups if before[group] != self._fingerprint(group)}

    def _fingerprint(self, group: str) -> frozenset[tuple[str, tuple[tuple[str, str, str], ...]]]:
        """Members and what they subscribe to."""
        return frozenset(
            (client_id, _subscribed(consumer))
            for table in self._tables.values()
            for client_id, consumer in table.consumers(group).items()
        )


def _subscribed(consumer: ConsumerData) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        sorted((entry.topic, entry.expression_type, entry.sub_string) for entry in consumer.subscription_data_set)
    )


def _groups(table: ClientIndex) -> set[str]:
    return {consumer.group_name for row in table.rows.values() for consumer in row.consumers}
