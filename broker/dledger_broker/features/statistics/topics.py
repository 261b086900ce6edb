"""Statistics of topics: the contents of their queues (202), their consumers (300, 343) and delays (303), system topics
(305).
"""

from __future__ import annotations

from typing import Final

from dledger.environment import Environment, slept
from dledger_broker.clients.gossip import Gossip
from dledger_broker.config import BrokerConfig
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.statistics.counting import Counting
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.bodies import TopicList, encode_body
from dledger_remoting.errors import TopicNotExist
from dledger_remoting.headers import GroupHeader, TopicHeader, TopicOfGroupHeader, decode_ext
from dledger_remoting.statistics import (
    ConsumeTimeSpans,
    GroupList,
    QueueRange,
    QueueTimeSpan,
    encode_topic_stats,
)
from dledger_remoting.topics import SYSTEM_TOPICS, MessageQueue, is_system_topic, require_readable

QUEUES_A_TURN: Final = 256
"""Maximum number of queues read in one turn of the event loop. A topic may have 65,536 queues."""


class TopicStatistics:
    """Handler of requests about topics, on the leader.

    Store times are read from stored messages, which may need the disk.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: LeadershipView,
        gossip: Gossip,
        requests: Requests,
        counting: Counting,
        config: BrokerConfig,
    ) -> None:
        self._machine = machine
        self._env = env
        self._group = group
        self._gossip = gossip
        self._requests = requests
        self._counting = counting
        self._broker_group = config.broker_group
        self._system_topics = SYSTEM_TOPICS | {topic.topic_name for topic in system_topics(config)}

    def ranges(self, request: Request) -> None:
        """Answer with the offsets of a topic's queues, and the time of the last message in each (202)."""
        topic = self._topic(decode_ext(TopicHeader, request.ext).topic)
        self._requests.spawn(request, self._ranges(request, topic))

    async def _ranges(self, request: Request, topic: TopicState) -> None:
        found, put_tps = {}, self._counting.stored_per_second(topic.config.topic_name)
        for queue_id in range(topic.queue_count):
            await self._pause_at(queue_id)
            queue, range_ = topic.queues.get(queue_id), QueueRange(0, 0, 0)
            if queue is not None:
                stored_ms = max(0, await self._machine.lookup.latest_store_time(queue))
                range_ = QueueRange(stored_ms, queue.max_offset, queue.first_offset)
            found[MessageQueue(self._broker_group, queue_id, topic.config.topic_name)] = range_
        self._requests.respond(request, encode_topic_stats(found, put_tps))

    def time_spans(self, request: Request) -> None:
        """Answer with the store times of the messages that a group has consumed of a topic, by queue (303)."""
        header = decode_ext(TopicOfGroupHeader, request.ext)
        require_readable(header.topic)
        topic = self._topic(header.topic)
        self._requests.spawn(request, self._time_spans(request, topic, header.group))

    async def _time_spans(self, request: Request, topic: TopicState, group: str) -> None:
        committed = dict(self._machine.state.table(OFFSETS).of(group, topic.config.topic_name))
        spans = []
        for queue_id in range(topic.queue_count):
            await self._pause_at(queue_id)
            name = MessageQueue(self._broker_group, queue_id, topic.config.topic_name)
            queue = topic.queues.get(queue_id)
            if queue is None:
                spans.append(QueueTimeSpan(-1, 0, -1, name, -1))
            else:
                spans.append(await self._time_span(queue, name, committed.get(queue_id, 0)))
        self._requests.respond(request, encode_body(ConsumeTimeSpans(spans)))

    async def _time_span(self, queue: QueueState, name: MessageQueue, consumed: int) -> QueueTimeSpan:
        lookup = self._machine.lookup
        first_ms = await lookup.earliest_store_time(queue)
        last_ms = await lookup.latest_store_time(queue)
        consumed_ms = first_ms if consumed <= 0 else await lookup.store_time_at(queue, consumed - 1)
        waits_ms = await lookup.store_time_at(queue, consumed)
        delay_ms = max(0, self._env.wall_ms() - waits_ms) if waits_ms >= 0 else 0
        return QueueTimeSpan(consumed_ms, delay_ms, last_ms, name, first_ms)

    def consumers(self, request: Request) -> None:
        """Answer with the groups whose members subscribe to a topic, and the groups with offsets on it (300)."""
        topic = decode_ext(TopicHeader, request.ext).topic

        def complete() -> None:
            # This node may have lost the leadership while it waited for the other nodes' tables.
            if not self._group.ready:
                self._requests.pass_on(request)
                return
            committed = {group for group, name in self._machine.state.table(OFFSETS).pairs() if name == topic}
            groups = committed | self._gossip.merged.consumer_groups_of(topic)
            self._requests.respond(request, encode_body(GroupList(sorted(groups))))

        self._gossip.after_all_tables(complete)

    def topics_of_group(self, request: Request) -> None:
        """Answer with the topics on which a group has offsets (343)."""
        group = decode_ext(GroupHeader, request.ext).group
        topics = sorted(topic for name, topic in self._machine.state.table(OFFSETS).pairs() if name == group)
        own_address = self._group.address_of(self._group.node_id)
        self._requests.respond(request, encode_body(TopicList(topics, own_address)))

    def system_topics(self, request: Request) -> None:
        """Answer with the system topics, including system topics that this broker does not have (305)."""
        own = {name for name in self._machine.state.topics if is_system_topic(name)}
        self._requests.respond(request, encode_body(TopicList(sorted(self._system_topics | own))))

    def _topic(self, name: str) -> TopicState:
        topic = self._machine.state.topics.get(name)
        if topic is None:
            raise TopicNotExist(f"topic[{name}] not exist")
        return topic

    async def _pause_at(self, queue_id: int) -> None:
        if queue_id and queue_id % QUEUES_A_TURN == 0:
            await slept(self._env, 0)
