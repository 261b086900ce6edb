"""Subscriptions of pulls: the messages that a pull wants, and whether the broker can filter them (46)."""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Request
from dledger_remoting.errors import NoPermission, ServerError, SubscriptionNotExist, SubscriptionNotLatest
from dledger_remoting.filters.limits import FilterLimits, FilterTooLarge
from dledger_remoting.filters.subscriptions import (
    EXPRESSION_CLASS,
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    MessageFilter,
    parse_filter,
)
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.headers_consume import PULL_CLASS_FILTER, PULL_SUBSCRIPTION
from dledger_remoting.heartbeat import SubscriptionData, decode_client_config_check
from dledger_remoting.hotpath import PullFields
from dledger_remoting.topics import SubscriptionGroupConfig

_TAGS: Final = (EXPRESSION_TAG, None, "")


class Subscriptions:
    """Finder of a pull's filter: its own, or the filter in its group's newest heartbeat."""

    def __init__(self, live: LiveConfig, counters: BrokerCounters, gossip: Gossip, classes: ClassFilters) -> None:
        self._live = live
        self._counters = counters
        self._gossip = gossip
        self._classes = classes
        self._limits = FilterLimits(live.own.max_filter_depth, live.own.max_filter_operands)

    def check(self, request: Request) -> None:
        """Answer with 0 if a subscription can be used here, or with the reason why not (46)."""
        subscription = decode_client_config_check(request.body).subscription_data
        self._of_heartbeat(subscription)
        request.respond()

    def filter_of(self, fields: PullFields, group: SubscriptionGroupConfig | None) -> MessageFilter | None:
        """Return the filter to apply, or None if every message matches. Raises `RemotingError` with RocketMQ's code."""
        is_class = bool(fields.sys_flag & PULL_CLASS_FILTER)
        if fields.sys_flag & PULL_SUBSCRIPTION:
            return self.parse(EXPRESSION_CLASS if is_class else fields.expression_type, fields.subscription)
        name, merged = fields.consumer_group, self._gossip.merged
        if not merged.is_online(name):
            raise SubscriptionNotExist(
                f"consumer group {name} is not online, which pulls {fields.topic} with version {fields.sub_version} of "
                "its subscription: send a heartbeat first"
            )
        if group is not None and not group.consume_broadcast_enable and merged.is_broadcasting(name):
            raise NoPermission(f"consumer group {name} may not broadcast: its consumeBroadcastEnable is false")
        subscription = merged.subscription(name, fields.topic)
        if subscription is None:
            raise SubscriptionNotExist(
                f"consumer group {name} does not subscribe to {fields.topic}, which it pulls with version "
                f"{fields.sub_version} of its subscription: send a heartbeat"
            )
        if subscription.sub_version < fields.sub_version:
            raise SubscriptionNotLatest(
                f"the subscription of {name} to {fields.topic} known here has version {subscription.sub_version}, "
                f"the pull's has version {fields.sub_version}: send a heartbeat"
            )
        if is_class and not subscription.class_filter_mode:
            return self.parse(EXPRESSION_CLASS, subscription.sub_string)
        return self._of_heartbeat(subscription)

    def _of_heartbeat(self, subscription: SubscriptionData) -> MessageFilter | None:
        kind = EXPRESSION_CLASS if subscription.class_filter_mode else subscription.expression_type
        return self.parse(kind, subscription.sub_string)

    def parse(self, expression_type: str | None, expression: str | None) -> MessageFilter | None:
        """Return the filter of a subscription.

        Raises the errors of `parse_filter`, and `ServerError` for an unavailable filter.
        """
        if expression == SUBSCRIBE_ALL and expression_type in _TAGS:
            return None  # This is the case for most pulls.
        if expression_type == EXPRESSION_CLASS:
            return self._classes.named(expression or "")
        if expression_type == EXPRESSION_SQL92 and not self._live.config.property_filter:
            raise ServerError(f"The broker does not support consumer to filter message by {expression_type}")
        try:
            if len(expression or "") > self._live.config.max_filter_chars:
                raise FilterTooLarge(
                    f"expression of {len(expression or '')} characters is longer than "
                    f"max_filter_chars = {self._live.config.max_filter_chars}",
                    "chars",
                )
            return parse_filter(expression_type, expression, self._limits)
        except FilterTooLarge as error:
            self._count(error.limit)
            raise

    def _count(self, limit: str) -> None:
        match limit:
            case "chars":
                self._counters.max_filter_chars += 1
            case "depth":
                self._counters.max_filter_depth += 1
            case _:
                self._counters.max_filter_operands += 1
