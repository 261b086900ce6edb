"""Requests about consumer groups: who the members are (38, 203), how far they are (208), who reads a queue (20004)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.bodies import ConsumerList, encode_body
from dledger_remoting.codes import LanguageCode
from dledger_remoting.consumers import (
    ConsumerConnection,
    MemberConnection,
    QueueProgress,
    QueueReader,
    QueueReaders,
    encode_consume_stats,
)
from dledger_remoting.errors import ConsumerNotOnline, ServerError
from dledger_remoting.headers import ConsumerGroupHeader, ConsumeStatsHeader, decode_ext
from dledger_remoting.topics import MessageQueue, retry_topic


class ConsumerRequests:
    """Answers for the group on the leader, and for its readers on every node."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: Group,
        gossip: Gossip,
        readers: Readers,
        requests: Requests,
        broker_group: str,
        commits: OffsetCommits,
    ) -> None:
        self._machine = machine
        self._env = env
        self._group = group
        self._gossip = gossip
        self._readers = readers
        self._requests = requests
        self._broker_group = broker_group
        self._commits = commits

    # ---------------------------------------------------------------- members

    def client_ids(self, request: Request) -> None:
        """38: the members of a group on all nodes."""
        self._with_members(request, self._answer_client_ids)

    def connections(self, request: Request) -> None:
        """203: the members of a group on all nodes, with what they subscribe to."""
        self._with_members(request, self._answer_connections)

    def _with_members(self, request: Request, answer: Callable[[Request, str], None]) -> None:
        """Answer once all nodes have told the leader of their clients."""
        group = decode_ext(ConsumerGroupHeader, request.ext).consumer_group

        def complete() -> None:
            if self._group.ready:
                answer(request, group)
            else:  # since it began to wait for what the others tell the leader
                self._requests.pass_on(request)

        self._gossip.when_complete(complete)

    def _answer_client_ids(self, request: Request, group: str) -> None:
        members = self._gossip.merged.members(group)
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
                    row.client_id,
                    row.address,
                    LanguageCode.from_wire(row.language).name,
                    row.version,
                    {entry.topic: entry.sub_string for entry in own.subscription_data_set},
                )
            )
        request.respond(body=encode_body(ConsumerConnection.of(members, consumers)))

    # ---------------------------------------------------------------- progress

    def progress(self, request: Request) -> None:
        """208: how far a group is in each queue, once commits under way are applied."""
        header = decode_ext(ConsumeStatsHeader, request.ext)
        self._commits.buffer.flush(partial(self._answer_progress, request, header))

    def _answer_progress(self, request: Request, header: ConsumeStatsHeader, error: Exception | None) -> None:
        if error is not None:
            self._requests.fail(request, error)
            return
        group, topics = header.consumer_group, self._machine.state.topics
        names = [header.topic] if header.topic else self._topics_of(group)
        found = {
            MessageQueue(self._broker_group, queue_id, name): self._progress(group, topics[name], queue_id)
            for name in names
            if name in topics
            for queue_id in range(topics[name].config.read_queue_nums)
        }
        self._requests.respond(request, encode_consume_stats(found))

    def _topics_of(self, group: str) -> Iterable[str]:
        """Where a group has offsets or is subscribed; what its members gave up while they were there counts no more."""
        state, merged = self._machine.state, self._gossip.merged
        subscribed = {entry.topic for member in merged.consumers(group) for entry in member.subscription_data_set}
        committed = {topic for name, topic in state.table(OFFSETS).pairs() if name == group}
        return sorted((subscribed or committed) | {retry_topic(group)})

    def _progress(self, group: str, topic: TopicState, queue_id: int) -> QueueProgress:
        offset = self._machine.state.table(OFFSETS).get(group, topic.config.topic_name, queue_id)
        queue = topic.queues.get(queue_id)
        first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        return QueueProgress(end, offset or 0, offset or 0, 0, first, offset is not None)

    # ---------------------------------------------------------------- readers

    def readers(self, request: Request) -> None:
        """20004: whose pulls for a group came to this node last."""
        group, now = decode_ext(ConsumerGroupHeader, request.ext).consumer_group, self._env.now()
        found = [
            QueueReader(topic, queue_id, sorted(origin.client_ids), str(origin.address), int((now - at) * 1000))
            for topic, queue_id, (origin, at) in self._readers.of(group, now)
        ]
        self._requests.respond(request, encode_body(QueueReaders(found)))
