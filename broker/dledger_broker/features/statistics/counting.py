"""Counts of a node by RocketMQ's names (315): what was stored in each topic, what each group has got of it here.

What is stored in a topic follows from the offsets of its queues, which every replica has: a new leader tells the same.
What groups get is counted by the node that delivers it, what they send back, and bytes that sends store, by the node
that led then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from dledger.environment import Cancellable, Environment
from dledger_broker.features.statistics.samples import PERIOD_S, Key, Samples, Total
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request
from dledger_remoting.bodies import encode_body
from dledger_remoting.errors import ServerError
from dledger_remoting.headers import StatsHeader, decode_ext
from dledger_remoting.statistics import BrokerStats

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"


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
        stats = self._samples.stats((header.stats_name, header.stats_key))
        if stats is None and self._is_counted(header.stats_name, header.stats_key):
            stats = BrokerStats()
        if stats is None:
            raise ServerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        request.respond(body=encode_body(stats))

    def _is_counted(self, name: str, key: str) -> bool:
        """Whether there will be a number of that name when the counts are looked at next."""
        counters, topic, group = self._counters, key.partition("@")[0], key.partition("@")[2]
        if name == TOPIC_PUT_NUMS:
            state = self._machine.state.topics.get(key)
            return state is not None and any(queue.next_offset for queue in state.queues.values())
        if name == TOPIC_PUT_SIZE:
            return key in counters.sizes.by_topic
        if name == SNDBCK_PUT_NUMS:
            return (group, topic) in counters.sent_back.pairs
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            return (group, topic) in counters.delivered.pairs
        return name in (BROKER_PUT_NUMS, BROKER_GET_NUMS) and key == self._cluster

    def stored_per_second(self, topic: str) -> float:
        """Messages stored in a topic, in the last minute."""
        return self._samples.per_second((TOPIC_PUT_NUMS, topic))

    def delivered_per_second(self, group: str, topic: str) -> float:
        """Messages of a topic that a group has got from this node, in the last minute."""
        return self._samples.per_second((GROUP_GET_NUMS, _pair(topic, group)))

    def _totals(self) -> Iterator[Total]:
        counters = self._counters
        for name, value in (
            (BROKER_PUT_NUMS, counters.messages_in),
            (BROKER_GET_NUMS, counters.messages_out),
        ):
            yield Total((name, self._cluster), value, value)
        topics = self._machine.state.topics
        for topic, state in list(topics.items()):
            stored = sum([queue.next_offset for queue in state.queues.values()])
            if stored:
                yield Total((TOPIC_PUT_NUMS, topic), stored, stored)
        for topic, (size, messages) in list(counters.sizes.by_topic.items()):
            if topic in topics:
                yield Total((TOPIC_PUT_SIZE, topic), size, messages)
            else:
                counters.sizes.forget(topic)
        for (group, topic), back in list(counters.sent_back.pairs.items()):
            if topic in topics:
                yield Total((SNDBCK_PUT_NUMS, _pair(topic, group)), back.messages, back.times)
            else:
                counters.sent_back.forget(group, topic)
        for (group, topic), got in list(counters.delivered.pairs.items()):
            if topic not in topics:
                counters.delivered.forget(group, topic)
                continue
            key: Key = (GROUP_GET_NUMS, _pair(topic, group))
            yield Total(key, got.messages, got.times)
            yield Total((GROUP_GET_SIZE, key[1]), got.size, got.times)


def _pair(topic: str, group: str) -> str:
    return f"{topic}@{group}"
