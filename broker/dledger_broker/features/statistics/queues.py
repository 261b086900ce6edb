"""Consume queues for operators: their units (321), and a group's subscription to a topic (345)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.bodies import encode_body
from dledger_remoting.errors import InvalidParameter, ServerError
from dledger_remoting.headers import QueryConsumeQueueHeader, TopicOfGroupHeader, decode_ext
from dledger_remoting.statistics import QueueUnit, QueueUnits, SubscriptionOfGroup
from dledger_remoting.topics import require_readable

MAX_UNITS: Final = 1_024
"""Maximum number of units in one answer. Further units need another request."""
_NO_FILTER_DATA: Final = "null"


class QueueContents:
    """Handler of requests about queues, on the leader, once all nodes have reported their clients to it."""

    def __init__(self, machine: BrokerMachine, group: LeadershipView, gossip: Gossip, requests: Requests) -> None:
        self._machine = machine
        self._group = group
        self._gossip = gossip
        self._requests = requests

    def units(self, request: Request) -> None:
        """Answer with units of a consume queue from an offset on, and the subscription of a group if one is named
        (321).
        """
        header = decode_ext(QueryConsumeQueueHeader, request.ext)
        require_readable(header.topic)
        queue = self._queue(header.topic, header.queue_id)
        if header.index < 0 or header.count < 0:
            raise InvalidParameter(f"index {header.index} or count {header.count} is below 0")

        def answer() -> None:
            self._requests.spawn(request, self._units(request, header, queue))

        if header.consumer_group:
            self._when_known(request, answer)
        else:
            answer()

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        found = self._machine.state.topics.get(topic)
        queue = None if found is None else found.queues.get(queue_id)
        if queue is None:
            raise ServerError(f"{queue_id}@{topic} is not exist!")
        return queue

    async def _units(self, request: Request, header: QueryConsumeQueueHeader, queue: QueueState) -> None:
        subscription, filter_data = None, None
        group = header.consumer_group
        if group:
            subscription = self._gossip.merged.subscription(group, header.topic)
            filter_data = _NO_FILTER_DATA if subscription else f"{group}@{header.topic} is not online!"
        count = min(header.count, MAX_UNITS)
        units = await self._machine.lookup.units(queue, max(header.index, queue.min_offset), count)
        found = [QueueUnit(position, size, tag_code) for position, size, tag_code in units]
        body = QueueUnits(queue.max_offset, queue.min_offset, found, filter_data, subscription)
        self._requests.respond(request, encode_body(body))

    def subscription(self, request: Request) -> None:
        """Answer with a group's subscription to a topic, if members of the group subscribe to it (345)."""
        header = decode_ext(TopicOfGroupHeader, request.ext)

        def answer() -> None:
            entry = self._gossip.merged.subscription(header.group, header.topic)
            self._requests.respond(request, encode_body(SubscriptionOfGroup(header.group, header.topic, entry)))

        self._when_known(request, answer)

    def _when_known(self, request: Request, answer: Callable[[], None]) -> None:
        self._gossip.after_all_tables(partial(self._if_ready, request, answer))

    def _if_ready(self, request: Request, answer: Callable[[], None]) -> None:
        if self._group.ready:
            answer()
        else:  # This node may have lost the leadership while it waited for the other nodes' tables.
            self._requests.pass_on(request)
