"""Tables of the connected clients: each node's own, and the leader's merged view of them.

Nothing here is replicated. Every node knows the clients that heartbeat to it, with their channels. It sends its table
to the leader (see `gossip.py`), which merges all tables. The code is pure: time is an argument, and channels are only
kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from dledger_broker.kernel.requests import Principal
from dledger_remoting.errors import SystemBusy
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from dledger_remoting.hosts import HostAddress

CLIENT_TIMEOUT_S: Final = 120.0
"""Time limit in seconds: a client that has sent no heartbeat for longer is forgotten."""


MAX_SUMMARIES: Final = 10_000
"""Maximum number of consumer groups whose summary for pulls is kept."""

_numbers: Final = itertools.count(1)

MAX_CLIENT_BYTES: Final = 48 << 20
"""Maximum size in bytes of the rows of all clients of a node. The leader holds as much again for each other node."""
_ROW_BYTES: Final = 600
_CONSUMER_BYTES: Final = 300
_SUBSCRIPTION_BYTES: Final = 450
_TAG_BYTES: Final = 120

ACCOUNT_MARK: Final = "\0"
"""Separates client id and account in the key of a client whose id another account's client already has. No id contains
it.
"""


def shown_id(client_id: str) -> str:
    """Return the client's own id, from the id under which tables have it."""
    return client_id.partition(ACCOUNT_MARK)[0]


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
        self._changes: dict[str, int] = {}

    @property
    def rows(self) -> Mapping[str, ClientRow]:
        """All clients by their id."""
        return self._rows

    def consumers(self, group: str) -> Mapping[str, ConsumerData]:
        """Return the consumers of a group by client id."""
        return self._consumers.get(group, {})

    def last_change(self, group: str) -> int:
        """Return the number of the last change of a consumer group, 0 if it has no members. Numbers are unique among
        all tables.
        """
        return self._changes.get(group, 0)

    def producers(self, group: str) -> Iterable[str]:
        """Return the client ids of a producer group."""
        return self._producers.get(group, ())

    def put(self, row: ClientRow) -> set[str]:
        """Add a client or replace its row. Return the consumer groups that changed."""
        former = self._rows.get(row.client_id)
        if former is not None and former.consumers == row.consumers and former.producer_groups == row.producer_groups:
            self._rows[row.client_id] = row
            return set()
        changed = self.remove(row.client_id) if former is not None else set()
        self._rows[row.client_id] = row
        for consumer in row.consumers:
            self._consumers.setdefault(consumer.group_name, {})[row.client_id] = consumer
            self._changes[consumer.group_name] = next(_numbers)
            changed.add(consumer.group_name)
        for group in row.producer_groups:
            self._producers.setdefault(group, set()).add(row.client_id)
        return changed

    def remove(self, client_id: str) -> set[str]:
        """Forget a client. Return the consumer groups that it was in."""
        row = self._rows.pop(client_id, None)
        if row is None:
            return set()
        groups = {consumer.group_name for consumer in row.consumers}  # a heartbeat may name a group twice
        for group in groups:
            members = self._consumers[group]
            members.pop(client_id, None)
            self._changes[group] = next(_numbers)
            if not members:
                del self._consumers[group], self._changes[group]
        for group in set(row.producer_groups):
            self._producers[group].discard(client_id)
            if not self._producers[group]:
                del self._producers[group]
        return groups


NOTIFY_FIELD: Final = "dledgerNotify"
"""A request or heartbeat with this field asks for notices of new leaders on its connection."""


@runtime_checkable
class ClientChannel(Protocol):
    """The connection that carries a client's heartbeats. A request forwarded by another node has no connection of this
    kind.
    """

    address: HostAddress
    key: str
    """Its name, unique among all channels."""
    client_ids: set[str]
    """Ids of the clients that heartbeat through it."""
    serialize_type: int
    """Encoding of the newest heartbeat. Requests of the broker to the client use the same."""
    wants_leader_notices: bool
    """True if the client wants to be notified of every new leader."""

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """Send a request to the client. Return its number, which the client's answer repeats unless the request is
        oneway.
        """


NO_ACCOUNT: Final = Principal("")
"""The principal of a client without an account: access control is off, or the global white list let the client in."""


class _Local:
    __slots__ = ("channel", "principal", "seen", "size")

    def __init__(self, channel: ClientChannel, seen: float, principal: Principal, size: int) -> None:
        self.channel = channel
        self.size = size
        self.seen = seen
        self.principal = principal


class LocalClients:
    """The clients that heartbeat to this node. `changed(client ids, consumer groups)` is called with every change."""

    def __init__(self, changed: Callable[[set[str], set[str]], None]) -> None:
        self.index = ClientIndex()
        self.held_bytes = 0
        """Size of all rows in bytes, about as they take memory."""
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
        principal: Principal = NO_ACCOUNT,
        address: HostAddress | None = None,
    ) -> ClientRow:
        """Handle a heartbeat, and return the client's row. With access control, `principal` is the client's account.
        `address` is the client's, if a proxy's channel carries the heartbeat.

        An id belongs to an account: a client of another account with the same id is a separate client. Raises
        `SystemBusy` if the rows of this node are full and this row would grow.
        """
        client_id = self.id_of(heartbeat.client_id, principal.name)
        current = self.index.rows.get(client_id)
        consumers = tuple(heartbeat.consumer_data_set)
        if current is not None:
            former = {consumer.group_name: consumer for consumer in reversed(current.consumers)}
            if heartbeat.is_without_sub:
                consumers = tuple(
                    _with_known_subscriptions(consumer, former.get(consumer.group_name)) for consumer in consumers
                )
            consumers = tuple(_merge_newer(consumer, former.get(consumer.group_name)) for consumer in consumers)
        row = ClientRow(
            client_id,
            str(address or channel.address),
            language,
            version,
            tuple(producer.group_name for producer in heartbeat.producer_data_set),
            consumers,
        )
        local = self._locals.get(client_id)
        size, before_bytes = _size_of(row), 0 if local is None else local.size
        if size > before_bytes and self.held_bytes - before_bytes + size > MAX_CLIENT_BYTES:
            raise SystemBusy(
                f"clients of this node subscribe to as much as there is room for, {MAX_CLIENT_BYTES} bytes: subscribe "
                "to fewer topics and tags"
            )
        self.held_bytes += size - before_bytes
        if local is not None and local.channel is not channel:
            local.channel.client_ids.discard(client_id)
        self._locals[client_id] = _Local(channel, now, principal, size)
        channel.client_ids.add(client_id)
        groups = self.index.put(row)
        if groups or current is None or current != row:
            self._changed({client_id}, groups)
        return row

    def id_of(self, client_id: str, account: str) -> str:
        """Return the id under which this table has, or would have, an account's client with this id."""
        marked = f"{client_id}{ACCOUNT_MARK}{account}"
        holder = self._locals.get(client_id)
        if marked in self._locals or (holder is not None and holder.principal.name != account):
            return marked
        return client_id

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None) -> None:
        """Remove a client from one or two groups. A client that is in no group any more is forgotten."""
        row = self.index.rows.get(client_id)
        if row is None:
            return
        remaining = msgspec.structs.replace(
            row,
            producer_groups=tuple(group for group in row.producer_groups if group != producer_group),
            consumers=tuple(consumer for consumer in row.consumers if consumer.group_name != consumer_group),
        )
        if remaining.producer_groups or remaining.consumers:
            self._changed({client_id}, self.index.put(remaining))
        else:
            self._forget(client_id)

    def channel_lost(self, channel: ClientChannel) -> None:
        """Forget every client that used a closed connection."""
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
        """Yield the channels of a consumer group's members, or of its members among `clients`, each once."""
        channel_ids: set[int] = set()
        for client_id in self.index.consumers(group):
            if clients is not None and client_id not in clients:
                continue
            channel = self._locals[client_id].channel
            if id(channel) not in channel_ids:
                channel_ids.add(id(channel))
                yield channel

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """Return the channel of a client that heartbeats to this node."""
        local = self._locals.get(client_id)
        return None if local is None else local.channel

    def principal_of(self, client_id: str) -> Principal:
        """Return the principal of a client that heartbeats to this node: its account, and whether its address alone
        gave it that.
        """
        local = self._locals.get(client_id)
        return NO_ACCOUNT if local is None else local.principal

    def seen(self) -> Iterator[tuple[ClientRow, float]]:
        """Yield each client with the time of its last heartbeat, in the order of client ids."""
        for client_id, local in sorted(self._locals.items()):
            yield self.index.rows[client_id], local.seen

    def _forget(self, client_id: str) -> None:
        local = self._locals.pop(client_id, None)
        if local is not None:
            self.held_bytes -= local.size
            local.channel.client_ids.discard(client_id)
            self._changed({client_id}, self.index.remove(client_id))


def _size_of(row: ClientRow) -> int:
    """Return about how much memory a row takes, in bytes."""
    size = _ROW_BYTES + 2 * len(row.client_id) + sum(100 + 2 * len(group) for group in row.producer_groups)
    for consumer in row.consumers:
        size += _CONSUMER_BYTES + 2 * len(consumer.group_name)
        for entry in consumer.subscription_data_set:
            size += _SUBSCRIPTION_BYTES + 2 * (len(entry.topic) + len(entry.sub_string))
            size += _TAG_BYTES * (len(entry.tags_set) + len(entry.code_set)) + sum(map(len, entry.tags_set))
    return size


def _with_known_subscriptions(consumer: ConsumerData, former: ConsumerData | None) -> ConsumerData:
    """Return the consumer with the subscriptions of its last heartbeat, if this heartbeat has no subscriptions."""
    if former is None or consumer.subscription_data_set:
        return consumer
    return msgspec.structs.replace(consumer, subscription_data_set=former.subscription_data_set)


def _merge_newer(consumer: ConsumerData, former: ConsumerData | None) -> ConsumerData:
    """Return the consumer with the newer version of each topic's subscription. Topics that are no longer listed are
    dropped.
    """
    if former is None:
        return consumer
    versions = {entry.topic: entry for entry in former.subscription_data_set}
    entries = [
        current
        if (current := versions.get(entry.topic)) is not None and current.sub_version > entry.sub_version
        else entry
        for entry in consumer.subscription_data_set
    ]
    return msgspec.structs.replace(consumer, subscription_data_set=entries)


class _Summary(NamedTuple):
    """Subscriptions of a consumer group, for pulls, with the change numbers of their source tables."""

    changes: tuple[int, ...]
    subscriptions: dict[str, SubscriptionData]
    """The newest subscription of each topic."""
    is_broadcasting: bool


class MergedClients:
    """The tables of all nodes, each under its node id. The leader answers from them."""

    def __init__(self, own_node_id: str, own: ClientIndex) -> None:
        self._summaries: dict[str, _Summary] = {}
        self._tables: dict[str, ClientIndex] = {own_node_id: own}
        self._own_node_id = own_node_id

    def replace(self, node_id: str, rows: Iterable[ClientRow]) -> set[str]:
        """Replace the table of a node. Return the consumer groups whose members changed."""
        former = self._tables.get(node_id, ClientIndex())
        table = ClientIndex()
        for row in rows:
            table.put(row)
        groups = _groups(former) | _groups(table)
        return self._changed(groups, lambda: self._tables.__setitem__(node_id, table))

    def update(self, node_id: str, rows: Iterable[ClientRow], removed: Iterable[str]) -> set[str]:
        """Apply changes of a node's table. Return the consumer groups whose members changed."""
        table = self._tables.setdefault(node_id, ClientIndex())
        rows, removed = list(rows), list(removed)
        groups = {consumer.group_name for row in rows for consumer in row.consumers}
        for client_id in [*removed, *(row.client_id for row in rows)]:
            current = table.rows.get(client_id)
            if current is not None:
                groups |= {consumer.group_name for consumer in current.consumers}

        def apply() -> None:
            for client_id in removed:
                table.remove(client_id)
            for row in rows:
                table.put(row)

        return self._changed(groups, apply)

    def forget_node(self, node_id: str) -> set[str]:
        """Drop the table of a node that was silent for too long. Return the consumer groups whose members changed."""
        if node_id == self._own_node_id or node_id not in self._tables:
            return set()
        return self._changed(_groups(self._tables[node_id]), lambda: self._tables.__delitem__(node_id))

    def members(self, group: str) -> list[str]:
        """Return the client ids of a consumer group as tables have them, sorted."""
        return sorted({client_id for table in self._tables.values() for client_id in table.consumers(group)})

    def member_ids(self, group: str) -> list[str]:
        """Return the own ids of the clients of a consumer group, sorted."""
        return sorted(set(map(shown_id, self.members(group))))

    def member(self, group: str, client_id: str) -> str | None:
        """Return the id under which tables list the client of a group with this own id, None if no table lists it."""
        return next((member for member in self.members(group) if shown_id(member) == client_id), None)

    def member_rows(self, group: str) -> list[ClientRow]:
        """Return the row of each member of a group, from the first table that has it, sorted by client id."""
        rows: dict[str, ClientRow] = {}
        for table in self._tables.values():
            for client_id in table.consumers(group):
                rows.setdefault(client_id, table.rows[client_id])
        return [rows[client_id] for client_id in sorted(rows)]

    def nodes_of(self, client_id: str) -> list[str]:
        """Return the nodes that a client heartbeats to, this node first."""
        return [node_id for node_id, table in self._tables.items() if client_id in table.rows]

    def producers(self, group: str) -> Iterator[tuple[str, str]]:
        """Yield the clients of a producer group as (node, client id). A client that heartbeats to several nodes is
        yielded once per node.
        """
        for node_id, table in self._tables.items():
            for client_id in table.producers(group):
                yield node_id, client_id

    def producer_rows(self, group: str) -> list[ClientRow]:
        """Return the row of each client of a producer group, from the first table that has it, sorted by client id."""
        rows: dict[str, ClientRow] = {}
        for node_id, client_id in self.producers(group):
            rows.setdefault(client_id, self._tables[node_id].rows[client_id])
        return [rows[client_id] for client_id in sorted(rows)]

    def consumer_groups_of(self, topic: str) -> set[str]:
        """Return the consumer groups with a member that subscribes to a topic."""
        return {
            consumer.group_name
            for table in self._tables.values()
            for row in table.rows.values()
            for consumer in row.consumers
            if any(entry.topic == topic for entry in consumer.subscription_data_set)
        }

    def consumers(self, group: str) -> Iterator[ConsumerData]:
        """Yield the group's data from each of its members. A client that heartbeats to several nodes is yielded once
        per node.
        """
        for table in self._tables.values():
            yield from table.consumers(group).values()

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the newest subscription of a group to a topic, None if no member has a subscription."""
        return self._summary(group).subscriptions.get(topic)

    def _summary(self, group: str) -> _Summary:
        """Return the summary of a group. It is kept until the group changes: a pull need not read all members."""
        changes = tuple(table.last_change(group) for table in self._tables.values())
        summary = self._summaries.get(group)
        if summary is not None and summary.changes == changes:
            return summary
        newest: dict[str, SubscriptionData] = {}
        is_broadcasting = False
        for consumer in self.consumers(group):
            is_broadcasting = is_broadcasting or consumer.message_model is MessageModel.BROADCASTING
            for entry in consumer.subscription_data_set:
                if entry.topic not in newest or entry.sub_version > newest[entry.topic].sub_version:
                    newest[entry.topic] = entry
        summary = _Summary(changes, newest, is_broadcasting)
        if len(self._summaries) >= MAX_SUMMARIES:
            self._summaries.clear()  # nobody reads the summaries of deleted groups again, so they would stay
        self._summaries[group] = summary
        return summary

    def differs_from_others(self, client_id: str, group: str) -> bool:
        """Return False if another node's table already has the same data for a client in a group as this node's table.

        Consumers heartbeat to every node. Only the first node that learns of a change notifies the group.
        """
        own = self._tables[self._own_node_id].consumers(group).get(client_id)
        other_consumers = [
            table.consumers(group)[client_id]
            for node_id, table in self._tables.items()
            if node_id != self._own_node_id and client_id in table.consumers(group)
        ]
        if not other_consumers:
            return True
        return own is not None and all(_subscribed(own) != _subscribed(other) for other in other_consumers)

    def rows(self) -> Iterator[ClientRow]:
        """Yield the rows of all tables. A client that is connected to several nodes is yielded once per node."""
        for table in self._tables.values():
            yield from table.rows.values()

    def clients_to_notify(self, node_id: str, groups: Iterable[str]) -> set[str]:
        """Return the members of these groups that a node must notify: the members that no earlier table has.

        The first table is this node's. The other tables follow in the order in which their nodes first sent a table.
        """
        node_ids = list(self._tables)
        earlier = (
            [self._tables[other] for other in node_ids[: node_ids.index(node_id)]] if node_id in self._tables else []
        )
        table = self._tables.get(node_id, ClientIndex())
        return {
            client_id
            for group in groups
            for client_id in table.consumers(group)
            if not any(client_id in other.consumers(group) for other in earlier)
        }

    def is_online(self, group: str) -> bool:
        """Return whether the group has members."""
        return any(table.consumers(group) for table in self._tables.values())

    def is_broadcasting(self, group: str) -> bool:
        """Return whether each member of the group wants every message."""
        return self._summary(group).is_broadcasting

    def _changed(self, groups: set[str], apply: Callable[[], None]) -> set[str]:
        former = {group: self._fingerprint(group) for group in groups}
        apply()
        return {group for group in groups if former[group] != self._fingerprint(group)}

    def _fingerprint(self, group: str) -> frozenset[tuple[str, tuple[tuple[str, str, str], ...]]]:
        """Return the members of a group and their subscriptions."""
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
