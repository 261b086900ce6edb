"""Counts of a node by RocketMQ's names (315): what was stored in each topic, what each group has got of it here.

What is stored in a topic follows from the offsets of its queues, which every replica has: a new leader tells the same.
What groups get is counted by the node that delivers it, what they send back, and bytes that sends store, by the node
that led then.

Numbers are of one incarnation of a topic: they begin anew when it is made again, and go with it, and with the group.
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
    """Looks at the counts every `PERIOD_S` once it is started."""

    def __init__(self, machine: BrokerMachine, env: Environment, counters: BrokerCounters, cluster: str) -> None:
        self._machine = machine
        self._env = env
        self._counters = counters
        self._cluster = cluster
        self._samples = Samples()
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Begin to look."""
        self._look(self._samples.look(int(self._env.now() * 1000), self._totals()))

    def _look(self, looking: Iterator[None]) -> None:
        for _ in looking:
            self._timer = self._env.call_later(0, partial(self._look, looking))
            return
        self._timer = self._env.call_later(PERIOD_S, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, request: Request) -> None:
        """315: what was counted under a name."""
        header = decode_ext(StatsHeader, request.ext)
        stats = self._stats(header.stats_name, header.stats_key)
        if stats is None:
            raise ServerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        request.respond(body=encode_body(stats))

    def _stats(self, name: str, key: str) -> BrokerStats | None:
        """What was counted under a name: nothing yet if that came since the last look. None if it is not there, or not
        followed because too many others are: a 0 would say that nothing comes.
        """
        incarnation = self._incarnation(name, key)
        if incarnation is None:
            return None
        stats = self._samples.stats((name, key), incarnation)
        if stats is None and self._is_counted(name, key) and self._samples.will_follow((name, key)):
            stats = BrokerStats()
        return stats

    def _is_counted(self, name: str, key: str) -> bool:
        """Whether there is a number of that name, of a topic and a group that are there."""
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
        """Messages stored in a topic, in the last minute; 0 also if it is not followed."""
        return self._per_second(TOPIC_PUT_NUMS, topic)

    def delivered_per_second(self, group: str, topic: str) -> float:
        """Messages of a topic that a group has got from this node, in the last minute; 0 also if it is not followed."""
        return self._per_second(GROUP_GET_NUMS, _pair(topic, group))

    def _per_second(self, name: str, key: str) -> float:
        incarnation = self._incarnation(name, key)
        return 0.0 if incarnation is None else self._samples.per_second((name, key), incarnation)

    def _incarnation(self, name: str, key: str) -> int | None:
        """Of the topic that a number is of; 0 for those of the node. None if its topic or group is not there."""
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
            state = self._machine.state.topics.get(topic)  # others go on meanwhile, and may delete it
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
        """Totals of groups and topics, under these names. Pairs of which either is gone make room for others."""
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
