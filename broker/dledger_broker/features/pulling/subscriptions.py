"""Subscriptions of pulls: which messages one wants, and whether the broker can filter so (46)."""

from __future__ import annotations

from dledger_broker.clients.gossip import Gossip
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.requests import Request
from dledger_remoting.errors import NoPermission, ServerError, SubscriptionNotExist, SubscriptionNotLatest
from dledger_remoting.filters.subscriptions import EXPRESSION_SQL92, MessageFilter, parse_filter
from dledger_remoting.headers_consume import PULL_CLASS_FILTER, PULL_SUBSCRIPTION
from dledger_remoting.heartbeat import decode_client_config_check
from dledger_remoting.hotpath import PullFields
from dledger_remoting.topics import SubscriptionGroupConfig


class Subscriptions:
    """Finds the filter of a pull: its own, or that of its group's newest heartbeat."""

    def __init__(self, config: BrokerConfig, gossip: Gossip) -> None:
        self._config = config
        self._gossip = gossip

    def check(self, request: Request) -> None:
        """46: 0 if a subscription can be used here, else why not."""
        subscription = decode_client_config_check(request.body).subscription_data
        self.parse(subscription.expression_type, subscription.sub_string)
        request.respond()

    def filter_of(self, fields: PullFields, group: SubscriptionGroupConfig | None) -> MessageFilter | None:
        """The filter to apply, None if every message matches. Raises `RemotingError` with RocketMQ's code."""
        if fields.sys_flag & PULL_CLASS_FILTER:
            raise ServerError("this broker does not filter by class: subscribe by tags")
        if fields.sys_flag & PULL_SUBSCRIPTION:
            return self.parse(fields.expression_type, fields.subscription)
        name, merged = fields.consumer_group, self._gossip.merged
        if not merged.is_online(name):
            raise SubscriptionNotExist(f"consumer group {name} is not online: send a heartbeat first")
        if group is not None and not group.consume_broadcast_enable and merged.is_broadcasting(name):
            raise NoPermission(f"consumer group {name} may not broadcast: its consumeBroadcastEnable is false")
        subscription = merged.subscription(name, fields.topic)
        if subscription is None:
            raise SubscriptionNotExist(f"consumer group {name} does not subscribe to {fields.topic}: send a heartbeat")
        if subscription.sub_version < fields.sub_version:
            raise SubscriptionNotLatest(
                f"the subscription of {name} to {fields.topic} known here has version {subscription.sub_version}, "
                f"the pull's has version {fields.sub_version}: send a heartbeat"
            )
        return self.parse(subscription.expression_type, subscription.sub_string)

    def parse(self, expression_type: str | None, expression: str | None) -> MessageFilter | None:
        """The filter of a subscription. Raises as `parse_filter`, and `ServerError` for a type that is off here."""
        if expression_type == EXPRESSION_SQL92 and not self._config.property_filter:
            raise ServerError(f"The broker does not support consumer to filter message by {expression_type}")
        return parse_filter(expression_type, expression)
