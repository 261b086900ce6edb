"""Subscriptions: filters of a consumer for a topic, by messages' tags, by their properties or by a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from dledger_remoting.errors import InvalidParameter, SubscriptionParseFailed
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import EXPRESSION_CLASS, EXPRESSION_SQL92, EXPRESSION_TAG, class_name
from dledger_remoting.filters.tags import SUBSCRIBE_ALL, TagFilter
from dledger_remoting.heartbeat import SubscriptionData
from dledger_remoting.topics import retry_topic, validate_group, validate_topic

from .cluster.surroundings import wall_ms
from .errors import InvalidArgumentError
from .namespaces import Namespace


class Sql(msgspec.Struct, frozen=True):
    """A filter by the properties of messages, which brokers apply: `Sql("region = 'eu' AND amount > 100")`.

    RocketMQ's SQL92: comparisons, `BETWEEN`, `IN`, `IS NULL`, `CONTAINS`, `STARTSWITH`, `ENDSWITH`, `AND`, `OR`, `NOT`.
    The tag is the property `TAGS`.
    """

    expression: str


class ClassFilter(msgspec.Struct, frozen=True):
    """A filter by code that brokers have, as the filter classes of RocketMQ 3: `ClassFilter("com.example.Large")`.

    The name is listed in the brokers' `class_filters`; a client sends no code.
    """

    name: str


Filter: TypeAlias = str | Sql | ClassFilter
"""Filter of a consumer: tags (`"a || b"`, `"*"` for all), properties or a class."""


class Subscription(msgspec.Struct, frozen=True):
    """Subscription of a consumer group to one topic. `version` grows with every change (ms since 1970)."""

    topic: str
    expression: str
    version: int
    expression_type: str = EXPRESSION_TAG

    @property
    def tags(self) -> TagFilter:
        """The tags that the client checks in messages that it got; all for SQL92 expressions and classes.

        Brokers compare only hash codes of tags, but evaluate SQL92 expressions completely.
        """
        return TagFilter.parse(self.expression if self.expression_type == EXPRESSION_TAG else SUBSCRIBE_ALL)


def subscription(topic: str, wanted: Filter, version: int) -> Subscription:
    """Return the subscription to a topic. Raises `InvalidArgumentError` if the filter is invalid."""
    try:
        if isinstance(wanted, Sql):
            SqlFilter.parse(wanted.expression)
            return Subscription(topic, wanted.expression, version, EXPRESSION_SQL92)
        if isinstance(wanted, ClassFilter):
            return Subscription(topic, class_name(wanted.name), version, EXPRESSION_CLASS)
        TagFilter.parse(wanted)
        return Subscription(topic, wanted or SUBSCRIBE_ALL, version)
    except SubscriptionParseFailed as error:
        raise InvalidArgumentError(error.remark) from error


def filters_by_topic(subscriptions: str | Sequence[str] | Mapping[str, Filter], wanted: Filter) -> Mapping[str, Filter]:
    """Return topics with their filters. `wanted` is the filter of topics that are given without one.

    Raises `InvalidArgumentError` if `wanted` is given beside a mapping.
    """
    if isinstance(subscriptions, Mapping):
        if wanted != SUBSCRIBE_ALL:
            raise InvalidArgumentError("filter is for topics that are named alone: these have a filter each")
        return subscriptions
    return dict.fromkeys([subscriptions] if isinstance(subscriptions, str) else subscriptions, wanted)


def subscription_data(wanted: Subscription) -> SubscriptionData:
    """Return a subscription in the form of a heartbeat."""
    tags = wanted.tags
    return SubscriptionData(
        topic=wanted.topic,
        sub_string=wanted.expression,
        tags_set=sorted(tags.tags),
        code_set=sorted(tags.codes),
        sub_version=wanted.version,
        expression_type=wanted.expression_type,
        class_filter_mode=wanted.expression_type == EXPRESSION_CLASS,
    )


def subscriptions_of(
    namespace: Namespace, group: str, filters: Mapping[str, Filter], *, with_retries: bool
) -> dict[str, Subscription]:
    """Return a consumer group's subscriptions by topic, with names as brokers know them.

    They include its retry topic if `with_retries`. Raises `InvalidArgumentError` for an invalid name or filter, or
    without topics.
    """
    version = wall_ms()
    if not filters:
        raise InvalidArgumentError("no topic given to subscribe to")
    try:
        validate_group(group)
        for topic in filters:
            validate_topic(topic)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error
    full = {namespace.full(topic): wanted for topic, wanted in filters.items()}
    parsed = {topic: subscription(topic, wanted, version) for topic, wanted in full.items()}
    if with_retries:
        parsed[retry_topic(group)] = Subscription(retry_topic(group), SUBSCRIBE_ALL, version)
    return parsed
