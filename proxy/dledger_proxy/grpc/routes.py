"""Routes of topics for clients: QueryRoute and QueryAssignment.

Every queue's broker has the id 0 and the addresses of proxies: those that the client itself named, unless the proxy's
configuration names others. So clients know nothing of leaders, and a failover changes no route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from dledger_client.cluster.routes import TopicRoute
from dledger_remoting.hosts import split_host_port
from dledger_remoting.message_types import accepted_types, type_of_topic
from dledger_remoting.topics import TopicConfig

from ..backends import Backends
from .answers import Refusal, ok
from .callers import Caller, group_name, topic_name
from .definition import messaging_pb2 as pb
from .incoming import TYPES

MAX_ENDPOINTS: Final = 64
"""Maximum number of addresses that a client may name for its proxies."""
ANY_QUEUE: Final = -1
"""Queue id of an assignment that stands for all queues of a broker group."""


def accepted_by(topic: TopicConfig) -> tuple[pb.MessageType, ...]:
    """Return the types of messages that a topic takes, as routes name them."""
    types = accepted_types(type_of_topic(topic.attributes))
    return tuple(TYPES[word] for word in types) or (pb.MESSAGE_TYPE_UNSPECIFIED,)


class Routes:
    """Answers with routes. `advertised` are the addresses of all proxies; without any, a client's own ones are used."""

    def __init__(self, backends: Backends, advertised: pb.Endpoints | None) -> None:
        self._backends = backends
        self._advertised = advertised

    async def query_route(self, caller: Caller, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        """Return all queues of a topic."""
        topic, deadline = topic_name(request.topic), self._backends.deadline(caller.deadline)
        endpoints = self._endpoints(request.endpoints)
        route = await self._backends.route(topic, deadline)
        types = accepted_by(await self._backends.topic(topic, deadline))
        queues = [
            pb.MessageQueue(
                topic=request.topic,
                id=queue_id,
                permission=permission,
                broker=pb.Broker(name=broker_group, id=0, endpoints=endpoints),
                accept_message_types=types,
            )
            for broker_group, queue_id, permission in _queues(route)
        ]
        return pb.QueryRouteResponse(status=ok(), message_queues=queues)

    async def query_assignment(self, caller: Caller, request: pb.QueryAssignmentRequest) -> pb.QueryAssignmentResponse:
        """Return what a member of a group is to ask for messages: each broker group, or each queue if order counts.

        All members of the group get the same, because popped messages are the taker's alone.
        """
        topic, group = topic_name(request.topic), group_name(request.group)
        deadline = self._backends.deadline(caller.deadline)
        endpoints = self._endpoints(request.endpoints)
        route = await self._backends.route(topic, deadline)
        settings = await self._backends.group(group, topic, deadline)
        readable = Counter(queue.broker_group for queue in route.readable)
        if not readable:
            raise Refusal(pb.FORBIDDEN, f"topic {topic} has no queue that can be read")
        assignments = [
            pb.Assignment(
                message_queue=pb.MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=pb.READ,
                    broker=pb.Broker(name=broker_group, id=0, endpoints=endpoints),
                )
            )
            for broker_group, count in sorted(readable.items())
            for queue_id in (range(count) if settings.consume_message_orderly else (ANY_QUEUE,))
        ]
        return pb.QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _endpoints(self, named: pb.Endpoints) -> pb.Endpoints:
        """Return the addresses for a client that reaches its proxies at these. Raises `Refusal`."""
        if self._advertised is not None:
            return self._advertised
        if not 1 <= len(named.addresses) <= MAX_ENDPOINTS:
            raise Refusal(
                pb.ILLEGAL_ACCESS_POINT,
                f"{len(named.addresses)} endpoints in the request: name 1 to {MAX_ENDPOINTS} addresses of proxies",
            )
        if named.scheme == pb.ADDRESS_SCHEME_UNSPECIFIED:
            return endpoints_of([(address.host, address.port) for address in named.addresses])
        return named


def endpoints_of(addresses: list[tuple[str, int]]) -> pb.Endpoints:
    """Return endpoints with the scheme that their first host needs."""
    return pb.Endpoints(
        scheme=_scheme(addresses[0][0]), addresses=[pb.Address(host=host, port=port) for host, port in addresses]
    )


def parse_endpoints(text: str) -> pb.Endpoints | None:
    """Return endpoints from `host:port` texts separated by `;`, None for an empty text. Raises ValueError."""
    addresses = [split_host_port(part.strip()) for part in text.split(";") if part.strip()]
    return endpoints_of(addresses) if addresses else None


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv4 if ip_address(host).version == 4 else pb.IPv6
    except ValueError:
        return pb.DOMAIN_NAME


def _queues(route: TopicRoute) -> Iterator[tuple[str, int, pb.Permission]]:
    """Yield broker group, queue id and permission of every queue that can be read or written."""
    readable, writable = set(route.readable), set(route.all_writable)
    for queue in sorted(readable | writable):
        is_both = queue in readable and queue in writable
        permission = pb.READ_WRITE if is_both else pb.READ if queue in readable else pb.WRITE
        yield queue.broker_group, queue.queue_id, permission
