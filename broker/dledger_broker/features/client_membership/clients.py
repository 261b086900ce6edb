"""Clients: heartbeats (34), leaving (35), and telling clients of changes (40, 20002)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import ClientChannel, ClientRow
from dledger_broker.config import BrokerConfig
from dledger_broker.features.client_membership.consumers import ConsumerRequests
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.retry_topics import retry_topic_config
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import BodyError, ServerError
from dledger_remoting.headers import ConsumerGroupHeader, UnregisterClientHeader, decode_ext, encode_ext
from dledger_remoting.heartbeat import ConsumerData, ConsumeType, decode_heartbeat
from dledger_remoting.topics import SubscriptionGroupConfig, is_system_group, retry_topic, validate_group

LEADER_CHANGED_CODE: Final = 20002
"""A request of ours to clients that asked for it with the ext field `dledgerNotify=true`: the group's leader changed;
ext `term`, `leaderAddr`, `brokerName`. Oneway."""

MAX_HEARTBEAT_BYTES: Final = 1 << 20
"""Room for thousands of subscriptions; what a client says of itself is told to the leader in one message."""
MAX_GROUPS: Final = 4_096
"""Groups of one client: the first heartbeat has each of them created."""
MAX_CLIENT_ID_CHARS: Final = 1_024
MAX_CLIENTS_PER_CONNECTION: Final = 1_024
"""The ids of a connection's clients go with every request that is passed on."""


class ClientRequests(Part):
    """Keeps the client table of this node, and on the leader what its groups need."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: Group,
        config: BrokerConfig,
        channels: Iterable[ClientChannel],
        groups: GroupProposals,
        gossip: Gossip,
        consumers: ConsumerRequests,
    ) -> None:
        self._machine = machine
        self._env = env
        self._group = group
        self._config = config
        self._channels = channels
        self._groups = groups
        self._gossip = gossip
        self._consumers = consumers
        self._announced: tuple[int, str] | None = None
        group.listeners.append(self._announce_leader)
        gossip.attach_members(self)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        consumers = self._consumers
        return {
            RequestCode.HEART_BEAT: Route(self.heartbeat, Needs.NOTHING, CHANGES, forwarded=False),
            RequestCode.UNREGISTER_CLIENT: Route(self.unregister, Needs.NOTHING, CHANGES, forwarded=False),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: Route(consumers.client_ids, Needs.LEADER, NO_EFFECT),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: Route(consumers.connections, Needs.CONFIRMED_LEADER, NO_EFFECT),
            RequestCode.GET_CONSUME_STATS: Route(consumers.progress, Needs.CONFIRMED_LEADER, NO_EFFECT),
            RequestCode.DLEDGER_QUEUE_READERS: Route(consumers.readers, Needs.NOTHING, NO_EFFECT, forwarded=False),
        }

    # ---------------------------------------------------------------- requests

    def heartbeat(self, request: Request) -> None:
        """34: answered once the client counts as a member and its groups have what they need."""
        connection = request.origin
        if not isinstance(connection, ClientChannel):
            raise ServerError("a heartbeat belongs to the connection that it came through")
        command = request.decoded()
        if len(request.body) > MAX_HEARTBEAT_BYTES:
            raise BodyError(f"heartbeat body: {len(request.body)} bytes, the limit is {MAX_HEARTBEAT_BYTES}")
        heartbeat = decode_heartbeat(request.body)
        _check_client_id(heartbeat.client_id, connection.client_ids)
        groups = len(heartbeat.producer_data_set) + len(heartbeat.consumer_data_set)
        if groups > MAX_GROUPS:
            raise BodyError(f"heartbeat body: {groups} groups, the limit is {MAX_GROUPS}")
        for producer in heartbeat.producer_data_set:
            validate_group(producer.group_name)
        for consumer in heartbeat.consumer_data_set:
            validate_group(consumer.group_name)
        connection.serialize_type = request.serialize_type
        row = self._gossip.local.heartbeat(
            connection, heartbeat, int(command.language), command.version, self._env.now()
        )
        if self._group.ready:
            self._ensure(row.consumers, request.respond)
        else:
            self._gossip.when_told(request.respond)

    def unregister(self, request: Request) -> None:
        """35: the client leaves one or two groups."""
        header = decode_ext(UnregisterClientHeader, request.ext)
        self._gossip.local.unregister(header.client_id, header.producer_group or None, header.consumer_group or None)
        request.respond()

    # ---------------------------------------------------------------- what groups need

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        """Leader: create what the groups of these clients need."""
        for row in rows:
            self._ensure(row.consumers, _nothing)

    def _ensure(self, consumers: Iterable[ConsumerData], done: Callable[[], None]) -> None:
        """Create missing groups and their retry topics, then call `done`; also if that failed, for the next heartbeat
        tries again.
        """
        waiting = 1

        def finished(_error: object = None) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                done()

        for consumer in consumers:
            if self._needs_something(consumer):
                waiting += 1
                self._ensure_one(consumer, finished)
        finished()

    def _needs_something(self, consumer: ConsumerData) -> bool:
        name = consumer.group_name
        if is_system_group(name):
            return False
        state = self._machine.state
        if name not in state.table(GROUPS).by_name:
            return self._config.auto_create_group
        return consumer.consume_type is not ConsumeType.POP and retry_topic(name) not in state.topics

    def _ensure_one(self, consumer: ConsumerData, done: Callable[[object], None]) -> None:
        def group_exists(error: Exception | None) -> None:
            config = self._machine.state.table(GROUPS).by_name.get(consumer.group_name)
            if error is not None or config is None or consumer.consume_type is ConsumeType.POP:
                done(error)
            else:
                self._machine.proposals.ensure_topic(retry_topic_config(config), done)

        self._groups.ensure_group(SubscriptionGroupConfig(consumer.group_name), group_exists)

    # ---------------------------------------------------------------- telling clients

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        """40: have this node's members of the groups, or those among `clients`, look again.

        Their held pulls are answered before: the C++ client does not go on before the pulls of queues that it gave up,
        and now gets back, have ended.
        """
        changed = {group for group in groups if self._is_notified(group)}
        if not changed:
            return
        self._gossip.release_pulls(changed)
        for group in changed:
            ext = encode_ext(ConsumerGroupHeader(group))
            for channel in self._gossip.local.channels_of(group, clients):
                channel.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext)

    def _is_notified(self, group: str) -> bool:
        config = self._machine.state.table(GROUPS).by_name.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _announce_leader(self) -> None:
        """20002: tell the clients that want to know who leads now."""
        address = self._group.leader_address
        if address is None or (self._group.leader_id == self._group.node_id and not self._group.ready):
            return
        announced = (self._group.term, address)
        if announced == self._announced:
            return
        self._announced = announced
        ext = {"term": str(self._group.term), "leaderAddr": address, "brokerName": self._config.broker_group}
        for connection in self._channels:
            if connection.wants_leader_notices:
                connection.push(LEADER_CHANGED_CODE, ext)


def _check_client_id(client_id: str, known: set[str]) -> None:
    """Raise `BodyError` unless the id may be one more of those that use a connection."""
    if not client_id.strip():
        raise BodyError("heartbeat body: clientID is empty")
    if len(client_id) > MAX_CLIENT_ID_CHARS:
        raise BodyError(
            f"heartbeat body: clientID has {len(client_id)} characters, at most {MAX_CLIENT_ID_CHARS} expected"
        )
    if client_id not in known and len(known) >= MAX_CLIENTS_PER_CONNECTION:
        raise BodyError(f"heartbeat body: {len(known)} other clients use this connection, which is the limit")


def _nothing() -> None:
    """For whoever waits for nothing."""
