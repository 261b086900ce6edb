"""Counts of a node under RocketMQ's names (315): messages stored in each topic, and messages that each group got here.

Messages stored in a topic follow from the offsets of its queues, which every replica has. So a new leader reports the
same number. Deliveries to groups are counted by the node that delivers. Send-backs and stored bytes are counted by the
node that led at the time.

Numbers belong to one incarnation of a topic. They begin anew when the topic is created again, and are dropped when the
topic or the group is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from dledger.environment import Cancellable, Environment
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.statistics.samples import PERIOD_S, Samples, Total
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.deliveries import Deliveries
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request
from dledger_remoting.bodies import encode_body
from dledger_remoting.errors import ServerError
from dledger_remoting.headers import StatsHeader, decode_ext
from dledger_remoting.statistics import BrokerStats
from dledger_remoting.topics import is_system_group

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
_OF_PAIRS: Final = (SNDBCK_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE)
_OF_THE_NODE: Final = (BROKER_PUT_NUMS, BROKER_GET_NUMS)


class Counting:
    """Sampler of a node's counts, every `PERIOD_S`. It answers requests about them."""

    def __init__(self, machine: BrokerMachine, env: Environment, counters: BrokerCounters, cluster: str) -> None:
        self._machine = machine
        self._env = env
        self._counters = counters
        self._cluster = cluster
        self._samples = Samples()
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Take the first samples now, and further samples every `PERIOD_S`."""
        self._continue_sampling(self._samples.look(int(self._env.now() * 1000), self._totals()))

    def _continue_sampling(self, sampling: Iterator[None]) -> None:
        for _ in sampling:
            self._timer = self._env.call_later(0, partial(self._continue_sampling, sampling))
            return
        self._timer = self._env.call_later(PERIOD_S, self.start)

    def stop(self) -> None:
        """Take no samples any more."""
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, request: Request) -> None:
        """Answer with the count under a name (315)."""
        header = decode_ext(StatsHeader, request.ext)
        stats = self._stats(header.stats_name, header.stats_key)
        if stats is None:
            raise ServerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        request.respond(body=encode_body(stats))

    def _stats(self, name: str, key: str) -> BrokerStats | None:
        """Return the count under a name, None if the count does not exist or is not sampled.

        A count that has appeared since the last samples, and will be sampled, is 0. If too many other counts are
        sampled, it is None, because 0 would say that no messages arrived.
        """
        incarnation = self._incarnation(name, key)
        if incarnation is None:
            return None
        stats = self._samples.stats((name, key), incarnation)
        if stats is None and self._is_counted(name, key) and self._samples.will_follow((name, key)):
            stats = BrokerStats()
        return stats

    def _is_counted(self, name: str, key: str) -> bool:
        """Return whether anything has been counted under a name. The topic and group of the key must exist."""
        counters, topic, group = self._counters, key.partition("@")[0], key.partition("@")[2]
        if name == TOPIC_PUT_NUMS:
            return any(queue.next_offset for queue in self._machine.state.topics[topic].queues.values())
        if name == TOPIC_PUT_SIZE:
            return key in counters.sizes.by_topic
        if name == SNDBCK_PUT_NUMS:
            return (group, topic) in counters.sent_back.pairs
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            return (group, topic) in counters.delivered.pairs
        return name in _OF_THE_NODE and key == self._cluster

    def stored_per_second(self, topic: str) -> float:
        """Return the messages stored per second in a topic in the last minute, or 0 if the topic is not sampled."""
        return self._per_second(TOPIC_PUT_NUMS, topic)

    def delivered_per_second(self, group: str, topic: str) -> float:
        """Return the messages of a topic per second that a group got from this node in the last minute.

        Return 0 if the pair of group and topic is not sampled.
        """
        return self._per_second(GROUP_GET_NUMS, _pair(topic, group))

    def _per_second(self, name: str, key: str) -> float:
        incarnation = self._incarnation(name, key)
        return 0.0 if incarnation is None else self._samples.per_second((name, key), incarnation)

    def _incarnation(self, name: str, key: str) -> int | None:
        """Return the incarnation of a count's topic, or 0 for counts of the node.

        Return None if the topic or group does not exist, or if the key does not have the form for its name.
        """
        if name in _OF_THE_NODE:
            return 0
        topic, at, group = key.partition("@")
        state = self._machine.state.topics.get(topic)
        if state is None or (name in _OF_PAIRS) != bool(at) or (at and not self._has_group(group)):
            return None
        return state.created_position

    def _has_group(self, group: str) -> bool:
        return group in self._machine.state.table(GROUPS).by_name or is_system_group(group)

    def _totals(self) -> Iterator[Total]:
        counters = self._counters
        for name, value in (
            (BROKER_PUT_NUMS, counters.messages_in),
            (BROKER_GET_NUMS, counters.messages_out),
        ):
            yield Total((name, self._cluster), value, value)
        for topic in list(self._machine.state.topics):
            state = self._machine.state.topics.get(topic)  # It may have been deleted during a pause.
            stored = 0 if state is None else sum([queue.next_offset for queue in state.queues.values()])
            if state is not None and stored:
                yield Total((TOPIC_PUT_NUMS, topic), stored, stored, state.created_position)
        for topic, (size, messages) in list(counters.sizes.by_topic.items()):
            incarnation = self._incarnation(TOPIC_PUT_SIZE, topic)
            if incarnation is None:
                counters.sizes.forget(topic)
            else:
                yield Total((TOPIC_PUT_SIZE, topic), size, messages, incarnation)
        yield from self._totals_of_pairs(counters.sent_back, SNDBCK_PUT_NUMS)
        yield from self._totals_of_pairs(counters.delivered, GROUP_GET_NUMS, GROUP_GET_SIZE)

    def _totals_of_pairs(self, counted: Deliveries, of_messages: str, of_bytes: str | None = None) -> Iterator[Total]:
        """Yield the totals of pairs of a group and a topic, under these names. Forget pairs that no longer exist."""
        for (group, topic), got in list(counted.pairs.items()):
            key = _pair(topic, group)
            incarnation = self._incarnation(of_messages, key)
            if incarnation is None:
                counted.forget(group, topic)
                continue
            yield Total((of_messages, key), got.messages, got.times, incarnation)
            if of_bytes is not None:
                yield Total((of_bytes, key), got.size, got.times, incarnation)


def _pair(topic: str, group: str) -> str:
    return f"{topic}@{group}"
