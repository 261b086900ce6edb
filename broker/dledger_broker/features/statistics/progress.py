"""Progress of consumer groups: how far a group is in each queue (208), and how far all groups are (317)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from dledger.environment import Environment, slept
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
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
from dledger_remoting.pop import Retry, pop_retry_topic
from dledger_remoting.topics import MessageQueue, retry_topic


class GroupProgress:
    """Handler of requests about progress, on the leader, once commits under way are applied.

    Store times of the messages consumed last are read from stored messages, which may need the disk.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        gossip: Gossip,
        requests: Requests,
        commits: OffsetCommits,
        counting: Counting,
        readers: Readers,
        config: BrokerConfig,
    ) -> None:
        self._machine = machine
        self._env = env
        self._gossip = gossip
        self._requests = requests
        self._commits = commits
        self._counting = counting
        self._readers = readers
        self._broker_group = config.broker_group
        self._address = str(config.advertised)
        self._queues_read = 0

    def of_group(self, request: Request) -> None:
        """Answer how far a group is in each queue of one topic, or of all topics that it reads (208)."""
        header = decode_ext(ConsumeStatsHeader, request.ext)
        self._commits.buffer.flush(partial(self._answer_one, request, header))

    def _answer_one(self, request: Request, header: ConsumeStatsHeader, error: Exception | None) -> None:
        if error is not None:
            self._requests.fail(request, error)
        else:
            self._requests.spawn(request, self._respond_one(request, header))

    async def _respond_one(self, request: Request, header: ConsumeStatsHeader) -> None:
        group = header.consumer_group
        queues: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        for name in self._topics_of(group, header.topic):
            topic = self._machine.state.topics.get(name)
            if topic is not None:
                progress = await self._in_topic(group, topic)
                queues.update(progress.queues)
                tps += progress.tps
        self._requests.respond(request, encode_consume_stats(queues, tps))

    def of_all_groups(self, request: Request) -> None:
        """Answer how far all groups are in the topics on which they have offsets (317)."""
        header = decode_ext(GroupsConsumeStatsHeader, request.ext)
        self._commits.buffer.flush(partial(self._answer_all, request, header))

    def _answer_all(self, request: Request, header: GroupsConsumeStatsHeader, error: Exception | None) -> None:
        if error is not None:
            self._requests.fail(request, error)
        else:
            self._requests.spawn(request, self._respond_all(request, ordered_only=header.is_order))

    async def _respond_all(self, request: Request, *, ordered_only: bool) -> None:
        state = self._machine.state
        groups = state.table(GROUPS).by_name
        by_group: dict[str, list[TopicProgress]] = {}
        for group, pairs in groupby(sorted(state.table(OFFSETS).pairs()), key=itemgetter(0)):
            if group not in groups:
                continue
            for name in _still_read(group, [name for _, name in pairs], self._subscribed_by(group)):
                topic = state.topics.get(name)
                if topic is not None and (topic.config.order or not ordered_only):
                    by_group.setdefault(group, []).append(await self._in_topic(group, topic))
        self._requests.respond(request, encode_groups_consume_stats(by_group, self._address))

    def _topics_of(self, group: str, requested: str | None) -> Iterable[str]:
        """Return the requested topic, or all topics on which a group has offsets or to which it subscribes.

        Topics that the group's members have given up are left out.
        """
        subscribed = self._subscribed_by(group)
        if requested:
            return _still_read(group, [requested], subscribed)
        committed = [topic for name, topic in self._machine.state.table(OFFSETS).pairs() if name == group]
        return sorted({*_still_read(group, committed, subscribed), *subscribed, retry_topic(group)})

    def _subscribed_by(self, group: str) -> Collection[str]:
        """Return the topics to which the members of a group subscribe."""
        members = self._gossip.merged.consumers(group)
        return {entry.topic for member in members for entry in member.subscription_data_set}

    async def _in_topic(self, group: str, topic: TopicState) -> TopicProgress:
        name = topic.config.topic_name
        queues: dict[MessageQueue, QueueProgress] = {}
        for queue_id in range(topic.config.read_queue_nums):
            self._queues_read += 1
            if self._queues_read % QUEUES_A_TURN == 0:
                await slept(self._env, 0)
            queues[MessageQueue(self._broker_group, queue_id, name)] = await self._in_queue(group, topic, queue_id)
        return TopicProgress(self._counting.delivered_per_second(group, name), queues)

    async def _in_queue(self, group: str, topic: TopicState, queue_id: int) -> QueueProgress:
        name = topic.config.topic_name
        committed = self._machine.state.table(OFFSETS).get(group, name, queue_id)
        offset = committed or 0
        queue = topic.queues.get(queue_id)
        if queue is None:
            return QueueProgress(0, offset, offset, 0, 0, committed is not None)
        stored_ms = max(0, await self._machine.lookup.store_time_at(queue, offset - 1))
        first, end = queue.first_offset, queue.max_offset
        pulled = min(self._readers.pulled(group, name, queue_id, self._env.now()), end)
        return QueueProgress(end, offset, max(offset, pulled), stored_ms, first, committed is not None)


def _still_read(group: str, topics: Sequence[str], subscribed: Collection[str]) -> Sequence[str]:
    """Return the topics that a group reads.

    A topic that present members have given up would stay behind for ever. Retry topics are read along with their
    topics. For a group without members, all topics count as read.
    """
    if not subscribed:
        return topics
    retries = {pop_retry_topic(group, topic, form) for topic in subscribed for form in (Retry.V1, Retry.V2)}
    read = {*subscribed, *retries, retry_topic(group)}
    return [topic for topic in topics if topic in read]
