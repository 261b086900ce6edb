"""Requests of clients about themselves: heartbeats (34) and leaving a group (35)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import ACCOUNT_MARK, NO_ACCOUNT, NOTIFY_FIELD, ClientChannel
from dledger_broker.features.client_membership.consumers import ConsumerRequests
from dledger_broker.features.client_membership.members import GroupMembers
from dledger_broker.kernel import rights
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, INTRODUCES, NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import BodyError, ServerError
from dledger_remoting.headers import UnregisterClientHeader, decode_ext
from dledger_remoting.heartbeat import decode_heartbeat
from dledger_remoting.speech import speech_in
from dledger_remoting.topics import is_retry_topic, validate_group

MAX_GROUPS: Final = 4_096
"""Maximum number of groups of a client. Its first heartbeat creates all of them."""
MAX_CLIENT_ID_CHARS: Final = 1_024
MAX_CLIENTS_PER_CONNECTION: Final = 1_024
"""Maximum number of client ids that share a connection. Every forwarded request carries all of them."""


_heartbeat_in: Final = lru_cache(maxsize=1)(decode_heartbeat)
"""Decoder that keeps the last heartbeat: the check of rights and the handler decode the same body in succession."""


def _consumed_groups(request: Request) -> list[str]:
    return [consumer.group_name for consumer in _heartbeat_in(request.body).consumer_data_set]


def _subscribed_topics(request: Request) -> list[str]:
    """Return the subscribed topics without retry topics, to which stock clients subscribe for each of their groups."""
    consumers = _heartbeat_in(request.body).consumer_data_set
    topics = [entry.topic for consumer in consumers for entry in consumer.subscription_data_set]
    return [topic for topic in topics if not is_retry_topic(topic)]


_HEARTBEAT: Final = (
    rights.groups_in("all that it consumes for", _consumed_groups, Action.SUB),
    rights.topics_in("all subscribed to", _subscribed_topics, Action.SUB),
)


class ClientRequests(Part):
    """Part that handles heartbeats of clients, and their leaving."""

    def __init__(
        self,
        env: Environment,
        group: LeadershipView,
        gossip: Gossip,
        members: GroupMembers,
        consumers: ConsumerRequests,
    ) -> None:
        self._env = env
        self._group = group
        self._gossip = gossip
        self._members = members
        self._consumers = consumers
        self._events = group.events

    @property
    def routes(self) -> Mapping[int, Route]:
        consumers = self._consumers
        return {
            RequestCode.HEART_BEAT: Route(
                self.heartbeat, Needs.NOTHING, INTRODUCES, forwarded=False, rights=_HEARTBEAT
            ),
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

    def topics_changed(self) -> None:
        self._members.check_waiting()

    def groups_changed(self) -> None:
        self._members.check_waiting()

    def leader_changed(self) -> None:
        self._members.announce_leader()
        self._gossip.leader_changed()

    def heartbeat(self, request: Request) -> None:
        """Handle 34: answer once the client counts as a member and its groups have what they need."""
        connection = request.origin
        if not isinstance(connection, ClientChannel):
            raise ServerError("a heartbeat belongs to the connection that it came through")
        command = request.decoded()
        heartbeat = _heartbeat_in(request.body)
        client_id = self._gossip.local.id_of(heartbeat.client_id, request.account)
        _check_client_id(
            heartbeat.client_id, is_known=client_id in connection.client_ids, known=len(connection.client_ids)
        )
        groups = len(heartbeat.producer_data_set) + len(heartbeat.consumer_data_set)
        if groups > MAX_GROUPS:
            raise BodyError(f"heartbeat body: {groups} groups, the limit is {MAX_GROUPS}")
        for producer in heartbeat.producer_data_set:
            validate_group(producer.group_name)
        for consumer in heartbeat.consumer_data_set:
            validate_group(consumer.group_name)
        connection.serialize_type = request.serialize_type
        # a client may ask for notices in any heartbeat, not only in the first request of the connection
        if NOTIFY_FIELD in request.ext:
            connection.wants_leader_notices = True
        speech = speech_in(request.ext)
        row = self._gossip.local.heartbeat(
            connection,
            heartbeat,
            int(command.language),
            command.version,
            self._env.now(),
            request.principal or NO_ACCOUNT,
            None if speech is None else speech.address,
        )
        for note_beat in self._events.client_beat:
            note_beat(request, heartbeat.client_id)
        if self._group.ready:
            self._members.ensure(row.consumers, request.respond, request)
        else:
            self._gossip.after_exchange(partial(self._members.when_made, row.consumers, request.respond))

    def unregister(self, request: Request) -> None:
        """Handle 35: remove the client from a producer group, a consumer group, or both."""
        header = decode_ext(UnregisterClientHeader, request.ext)
        client_id = self._gossip.local.id_of(header.client_id, request.account)
        self._gossip.local.unregister(client_id, header.producer_group or None, header.consumer_group or None)
        for note_leaving in self._events.client_left:
            note_leaving(request, header)
        request.respond()


def _check_client_id(client_id: str, *, is_known: bool, known: int) -> None:
    """Raise `BodyError` unless a client id is valid, and new only if its connection has fewer ids than the limit."""
    if ACCOUNT_MARK in client_id:
        raise BodyError("heartbeat body: clientID has a NUL character, which no id may have")
    if not client_id.strip():
        raise BodyError("heartbeat body: clientID is empty")
    if len(client_id) > MAX_CLIENT_ID_CHARS:
        raise BodyError(
            f"heartbeat body: clientID has {len(client_id)} characters, at most {MAX_CLIENT_ID_CHARS} expected"
        )
    if not is_known and known >= MAX_CLIENTS_PER_CONNECTION:
        raise BodyError(f"heartbeat body: {known} other clients use this connection, which is the limit")
