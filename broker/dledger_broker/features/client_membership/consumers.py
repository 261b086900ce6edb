"""Requests about consumer groups: their members (38, 203), and the clients that read a queue (20004)."""

from __future__ import annotations

from collections.abc import Callable

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.clients.tables import shown_id
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.requests import Origin, Request, Requests
from dledger_remoting.bodies import ConsumerList, encode_body
from dledger_remoting.codes import LanguageCode
from dledger_remoting.consumers import (
    ConsumerConnection,
    MemberConnection,
    QueueReader,
    QueueReaders,
)
from dledger_remoting.errors import ConsumerNotOnline, ServerError
from dledger_remoting.headers import ConsumerGroupHeader, decode_ext


class ConsumerRequests:
    """Handlers that answer for members on the leader, and for readers on every node."""

    def __init__(
        self,
        env: Environment,
        group: LeadershipView,
        gossip: Gossip,
        readers: Readers,
        requests: Requests,
    ) -> None:
        self._env = env
        self._group = group
        self._gossip = gossip
        self._readers = readers
        self._requests = requests

    # ---------------------------------------------------------------- members

    def client_ids(self, request: Request) -> None:
        """Handle 38: answer with the client ids of a group's members on all nodes."""
        self._with_members(request, self._answer_client_ids)

    def connections(self, request: Request) -> None:
        """Handle 203: answer with a group's members on all nodes and their subscriptions."""
        self._with_members(request, self._answer_connections)

    def _with_members(self, request: Request, answer: Callable[[Request, str], None]) -> None:
        """Answer once all nodes have reported their clients to the leader."""
        group = decode_ext(ConsumerGroupHeader, request.ext).consumer_group

        def complete() -> None:
            if self._group.ready:
                answer(request, group)
            else:  # the leadership was lost while waiting for the other nodes' reports
                self._requests.pass_on(request)

        self._gossip.after_all_tables(complete)

    def _answer_client_ids(self, request: Request, group: str) -> None:
        members = self._gossip.merged.member_ids(group)
        if members:
            request.respond(body=encode_body(ConsumerList(members)))
        else:
            request.fail(ServerError(f"no consumer for this group, {group}"))

    def _answer_connections(self, request: Request, group: str) -> None:
        rows = self._gossip.merged.member_rows(group)
        if not rows:
            request.fail(ConsumerNotOnline(f"the consumer group[{group}] not online"))
            return
        members: list[MemberConnection] = []
        consumers = []
        for row in rows:
            own = next(consumer for consumer in row.consumers if consumer.group_name == group)
            consumers.append(own)
            members.append(
                MemberConnection(
                    shown_id(row.client_id),
                    row.address,
                    LanguageCode.from_wire(row.language).name,
                    row.version,
                    {entry.topic: entry.sub_string for entry in own.subscription_data_set},
                )
            )
        request.respond(body=encode_body(ConsumerConnection.of(members, consumers)))

    # ---------------------------------------------------------------- readers

    def readers(self, request: Request) -> None:
        """Handle 20004: answer with the client that pulled last, for each queue that a group pulls from this node."""
        group, now = decode_ext(ConsumerGroupHeader, request.ext).consumer_group, self._env.now()
        found = [
            QueueReader(topic, queue_id, _ids_of(origin), str(origin.address), int((now - at) * 1000))
            for topic, queue_id, (origin, at, _, _) in self._readers.of(group, now)
        ]
        self._requests.respond(request, encode_body(QueueReaders(found)))


def _ids_of(origin: Origin) -> list[str]:
    return sorted(map(shown_id, origin.client_ids))
