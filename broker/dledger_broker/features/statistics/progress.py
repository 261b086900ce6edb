"""Progress of consumer groups: how far one is in each queue (208), and how far all are (317)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dledger.environment import Environment, slept
from dledger_broker.clients.gossip import Gossip
from dledger_broker.config import BrokerConfig
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.statistics.counting import Counting
from dledger_broker.features.statistics.topics import QUEUES_A_TURN
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.consumers import (
    QueueProgress,
    TopicProgress,
    encode_consume_stats,
    encode_groups_consume_stats,
)
from dledger_remoting.headers import ConsumeStatsHeader, GroupsConsumeStatsHeader, decode_ext
from dledger_remoting.topics import MessageQueue, retry_topic


class GroupProgress:
    """Answers on the leader, once commits under way are applied. Store times of what was consumed last are read from
    stored messages, which may need the disk.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        gossip: Gossip,
        requests: Requests,
        commits: OffsetCommits,
        counting: Counting,
        config: BrokerConfig,
    ) -> None:
        self._machine = machine
        self._env = env
        self._gossip = gossip
        self._requests = requests
        self._commits = commits
        self._counting = counting
        self._broker_group = config.broker_group
        self._address = str(config.advertised)
        self._seen = 0

    def of_group(self, request: Request) -> None:
        """208: how far a group is in each queue of one topic, or of all that it reads."""
        header = decode_ext(ConsumeStatsHeader, request.ext)
        self._commits.buffer.flush(partial(self._answer_one, request, header))

    def _answer_one(self, request: Request, header: ConsumeStatsHeader, error: Exception | None) -> None:
        if error is not None:
            self._requests.fail(request, error)
        else:
            self._requests.spawn(request, self._tell_one(request, header))

    async def _tell_one(self, request: Request, header: ConsumeStatsHeader) -> None:
        group = header.consumer_group
        names = [header.topic] if header.topic else self._topics_of(group)
        found: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        for name in names:
            topic = self._machine.state.topics.get(name)
            if topic is not None:
                progress = await self._in_topic(group, topic)
                found.update(progress.queues)
                tps += progress.tps
        self._requests.respond(request, encode_consume_stats(found, tps))

    def of_all_groups(self, request: Request) -> None:
        """317: how far all groups are in the topics on which they have offsets."""
        header = decode_ext(GroupsConsumeStatsHeader, request.ext)
        self._commits.buffer.flush(partial(self._answer_all, request, header))

    def _answer_all(self, request: Request, header: GroupsConsumeStatsHeader, error: Exception | None) -> None:
        if error is not None:
            self._requests.fail(request, error)
        else:
            self._requests.spawn(request, self._tell_all(request, ordered_only=header.is_order))

    async def _tell_all(self, request: Request, *, ordered_only: bool) -> None:
        state = self._machine.state
        groups = state.table(GROUPS).by_name
        told: dict[str, list[TopicProgress]] = {}
        for group, name in sorted(state.table(OFFSETS).pairs()):
            topic = state.topics.get(name)
            if topic is None or group not in groups or (ordered_only and not topic.config.order):
                continue
            told.setdefault(group, []).append(await self._in_topic(group, topic))
        self._requests.respond(request, encode_groups_consume_stats(told, self._address))

    def _topics_of(self, group: str) -> Iterable[str]:
        """Where a group has offsets or is subscribed; what its members gave up while they were there counts no more."""
        state, merged = self._machine.state, self._gossip.merged
        subscribed = {entry.topic for member in merged.consumers(group) for entry in member.subscription_data_set}
        committed = {topic for name, topic in state.table(OFFSETS).pairs() if name == group}
        return sorted((subscribed or committed) | {retry_topic(group)})

    async def _in_topic(self, group: str, topic: TopicState) -> TopicProgress:
        name = topic.config.topic_name
        queues: dict[MessageQueue, QueueProgress] = {}
        for queue_id in range(topic.config.read_queue_nums):
            self._seen += 1
            if self._seen % QUEUES_A_TURN == 0:
                await slept(self._env, 0)
            queues[MessageQueue(self._broker_group, queue_id, name)] = await self._in_queue(group, topic, queue_id)
        return TopicProgress(self._counting.delivered_per_second(group, name), queues)

    async def _in_queue(self, group: str, topic: TopicState, queue_id: int) -> QueueProgress:
        offset = self._machine.state.table(OFFSETS).get(group, topic.config.topic_name, queue_id)
        queue = topic.queues.get(queue_id)
        if queue is None:
            return QueueProgress(0, offset or 0, offset or 0, 0, 0, offset is not None)
        first, end = queue.min_offset, queue.max_offset
        stored_ms = max(0, await self._machine.lookup.store_time_at(queue, (offset or 0) - 1))
        return QueueProgress(end, offset or 0, offset or 0, stored_ms, first, offset is not None)
