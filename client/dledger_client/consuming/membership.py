"""Membership in a consumer group: heartbeats that announce it, and this member's share of the queues."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dledger_remoting.bodies import ConsumerList, decode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import ConsumerGroupHeader, UnregisterClientHeader, encode_ext
from dledger_remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from dledger_remoting.topics import is_retry_topic

from ..cluster.core import ClientCore
from ..errors import ClientError, NoRouteError, refusal
from ..messages import MessageQueue
from ..subscriptions import Subscription, subscription_data
from .rebalance import Strategy

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 3.0
_PATIENCE_SECONDS: Final = 2.0
"""Time in seconds for which a missing route is normal, because the topic may be about to be created.

A route that is still missing then is logged.
"""
_NO_MEMBER_CODES: Final = frozenset({int(ResponseCode.SYSTEM_ERROR)})
"""Code with which RocketMQ answers if the consumer group has no member there."""


class Assignment(msgspec.Struct, frozen=True):
    """The queues that this member reads now.

    `alone` is False if another member of the consumer group was seen. `complete` is False if some topic's share could
    not be determined.
    """

    queues: frozenset[MessageQueue]
    alone: bool
    complete: bool


def heartbeat_of(
    client_id: str, consumer_group: str, subscriptions: Mapping[str, Subscription], *, broadcast: bool, from_first: bool
) -> HeartbeatData:
    """Return the heartbeat of a push consumer."""
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=[
            ConsumerData(
                group_name=consumer_group,
                consume_type=ConsumeType.PUSH,
                message_model=MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET if from_first else ConsumeFromWhere.LAST_OFFSET,
                subscription_data_set=[subscription_data(subscription) for subscription in subscriptions.values()],
            )
        ],
    )


class Membership:
    """Determines this member's share. `strategy` None means broadcast: every member reads all queues."""

    def __init__(self, core: ClientCore, consumer_group: str, topics: Sequence[str], strategy: Strategy | None) -> None:
        self._core = core
        self._consumer_group = consumer_group
        self._topics = topics
        self._strategy = strategy
        self._warn_at: dict[str, float] = {}

    async def assignment(self, current: frozenset[MessageQueue]) -> Assignment:
        """Return the present share. For a topic whose share cannot be determined, the `current` queues stay."""
        queues: set[MessageQueue] = set()
        alone = complete = True
        for topic in self._topics:
            try:
                share, is_alone = await self._determine_share(topic)
                alone = alone and is_alone
                self._warn_at.pop(topic, None)
            except ClientError as error:
                logger.log(self._log_level_of(error, topic), "share of %s not determined: %s", topic, error)
                share = [queue for queue in current if queue.topic == topic]
                complete = False
            queues.update(share)
        return Assignment(frozenset(queues), alone, complete)

    def _log_level_of(self, error: ClientError, topic: str) -> int:
        """Return the log level for a share that was not determined: WARNING, except for most missing routes.

        Topics may be created after their consumers, as retry topics always are. A route that is still missing after
        `_PATIENCE_SECONDS` is a warning once, because the topic's name may be wrong.
        """
        if not isinstance(error, NoRouteError):
            return logging.WARNING
        now = self._core.loop.time()
        if is_retry_topic(topic) or now < self._warn_at.setdefault(topic, now + _PATIENCE_SECONDS):
            return logging.DEBUG
        self._warn_at[topic] = math.inf
        return logging.WARNING

    async def leave(self) -> None:
        """Tell all connected brokers that this member has left. Failures are ignored."""
        header = UnregisterClientHeader(client_id=self._core.client_id, consumer_group=self._consumer_group)
        deadline = self._core.loop.time() + _ANSWER_SECONDS / 3
        addresses = {
            connection.address
            for connection in self._core.pool.connections()
            if connection.address not in self._core.name_servers.addresses
        }
        await asyncio.gather(
            *(
                self._core.call(address, RequestCode.UNREGISTER_CLIENT, encode_ext(header), deadline=deadline)
                for address in sorted(addresses)
            ),
            return_exceptions=True,
        )

    async def _determine_share(self, topic: str) -> tuple[Sequence[MessageQueue], bool]:
        """Return this member's queues of a topic, and whether there is no other member."""
        deadline = self._core.loop.time() + _ANSWER_SECONDS
        route = await self._core.routes.get(topic, deadline)
        if self._strategy is None:
            return route.readable, True
        names = sorted({queue.broker_group for queue in route.readable})
        if not names:
            return (), True
        members = await self._find_members(names)
        return self._strategy(self._core.client_id, members, route.readable), len(members) == 1

    async def _find_members(self, group_names: Sequence[str]) -> list[str]:
        """Return the consumer group's client ids, from the first broker group that answers and knows this client.

        Broker groups whose leader is known are asked first, and each has its own time limit. A broker group without a
        leader must not keep the members from reading the others.

        A broker that does not know this client yet is sent a heartbeat and asked again. Shares computed without this
        member would leave queues without a reader, or with two.
        """
        last_error: ClientError | None = None
        groups = self._core.routes.groups
        for name in sorted(group_names, key=lambda name: groups[name].leader is None):
            deadline = self._core.loop.time() + _ANSWER_SECONDS
            try:
                members = await self._request_members(name, deadline)
                if self._core.client_id not in members:
                    await self._core.beat_now(self._core.routes.group(name).addresses)
                    members = await self._request_members(name, deadline)
            except ClientError as error:
                last_error = error
                continue
            if self._core.client_id in members:
                return members
        raise last_error or NoRouteError(self._consumer_group, "no broker lists this client among the group's members")

    async def _request_members(self, group_name: str, deadline: float) -> list[str]:
        header = ConsumerGroupHeader(consumer_group=self._consumer_group)
        response = await self._core.call_leader(
            self._core.routes.group(group_name),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            encode_ext(header),
            deadline=deadline,
            accept=_NO_MEMBER_CODES,
        )
        if response.code != ResponseCode.SUCCESS:
            return []
        try:
            return decode_body(ConsumerList, response.body).consumer_id_list
        except RemotingError as error:
            raise refusal(error) from error
