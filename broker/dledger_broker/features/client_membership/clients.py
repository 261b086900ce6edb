"""Requests of clients about themselves: heartbeats (34), leaving (35)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import NOTIFY_FIELD, ClientChannel
from dledger_broker.features.client_membership.consumers import ConsumerRequests
from dledger_broker.features.client_membership.members import GroupMembers
from dledger_broker.kernel import rights
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import BodyError, NoPermission, ServerError
from dledger_remoting.headers import UnregisterClientHeader, decode_ext
from dledger_remoting.heartbeat import decode_heartbeat
from dledger_remoting.topics import is_retry_topic, validate_group

MAX_HEARTBEAT_BYTES: Final = 1 << 20
"""Room for thousands of subscriptions; what a client says of itself is told to the leader in one message."""
MAX_GROUPS: Final = 4_096
"""Groups of one client: the first heartbeat has each of them created."""
MAX_CLIENT_ID_CHARS: Final = 1_024
MAX_CLIENTS_PER_CONNECTION: Final = 1_024
"""The ids of a connection's clients go with every request that is passed on."""


def _consumed_groups(request: Request) -> list[str]:
    return [consumer.group_name for consumer in decode_heartbeat(request.body).consumer_data_set]


def _subscribed_topics(request: Request) -> list[str]:
    """All but topics of what comes again: stock clients subscribe to that of each group of their own."""
    consumers = decode_heartbeat(request.body).consumer_data_set
    topics = [entry.topic for consumer in consumers for entry in consumer.subscription_data_set]
    return [topic for topic in topics if not is_retry_topic(topic)]


_HEARTBEAT: Final = (
    rights.groups_in("all that it consumes for", _consumed_groups, Action.SUB),
    rights.topics_in("all subscribed to", _subscribed_topics, Action.SUB),
)


class ClientRequests(Part):
    """Takes in what clients say of themselves."""

    def __init__(
        self, env: Environment, group: Group, gossip: Gossip, members: GroupMembers, consumers: ConsumerRequests
    ) -> None:
        self._env = env
        self._group = group
        self._gossip = gossip
        self._members = members
        self._consumers = consumers
        self.on_unregister: list[Callable[[Request, UnregisterClientHeader], None]] = []
        """Called with each 35 and its header before it is answered."""

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        consumers = self._consumers
        return {
            RequestCode.HEART_BEAT: Route(self.heartbeat, Needs.NOTHING, CHANGES, forwarded=False, rights=_HEARTBEAT),
            RequestCode.UNREGISTER_CLIENT: Route(
                self.unregister,
                Needs.NOTHING,
                CHANGES,
                forwarded=False,
                rights=(rights.group("consumerGroup", Action.SUB, optional=True),),
            ),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: Route(
                consumers.client_ids,
                Needs.LEADER,
                NO_EFFECT,
                rights=(rights.group("consumerGroup", Action.SUB, Action.GET),),
            ),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: Route(
                consumers.connections,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(rights.group("consumerGroup", Action.GET),),
            ),
            RequestCode.DLEDGER_QUEUE_READERS: Route(
                consumers.readers,
                Needs.NOTHING,
                NO_EFFECT,
                forwarded=False,
                rights=(rights.group("consumerGroup", Action.SUB, Action.GET),),
            ),
        }

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
        self._require_own(heartbeat.client_id, request)
        groups = len(heartbeat.producer_data_set) + len(heartbeat.consumer_data_set)
        if groups > MAX_GROUPS:
            raise BodyError(f"heartbeat body: {groups} groups, the limit is {MAX_GROUPS}")
        for producer in heartbeat.producer_data_set:
            validate_group(producer.group_name)
        for consumer in heartbeat.consumer_data_set:
            validate_group(consumer.group_name)
        connection.serialize_type = request.serialize_type
        if NOTIFY_FIELD in request.ext:  # it need not be the connection's first request
            connection.wants_leader_notices = True
        row = self._gossip.local.heartbeat(
            connection, heartbeat, int(command.language), command.version, self._env.now(), request.account
        )
        if self._group.ready:
            self._members.ensure(row.consumers, request.respond)
        else:
            self._gossip.when_told(partial(self._members.when_made, row.consumers, request.respond))

    def unregister(self, request: Request) -> None:
        """35: the client leaves one or two groups."""
        header = decode_ext(UnregisterClientHeader, request.ext)
        self._require_own(header.client_id, request)
        self._gossip.local.unregister(header.client_id, header.producer_group or None, header.consumer_group or None)
        for told in self.on_unregister:
            told(request, header)
        request.respond()

    def _require_own(self, client_id: str, request: Request) -> None:
        """Raise `NoPermission` for the id of another account's connected client: who had it would get its replies."""
        account = self._gossip.local.account_of(client_id)
        if account is not None and account != request.account:
            raise NoPermission(f"clientID {client_id[:64]!r} is that of a client of another account")


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
