"""Subscriptions: what a consumer wants of a topic, by the tag of messages or, with `Sql`, by their properties."""

from __future__ import annotations

import msgspec

from dledger_remoting.errors import SubscriptionParseFailed
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import EXPRESSION_SQL92, EXPRESSION_TAG
from dledger_remoting.filters.tags import SUBSCRIBE_ALL, TagFilter
from dledger_remoting.heartbeat import SubscriptionData

from .errors import InvalidArgumentError


class Sql(msgspec.Struct, frozen=True):
    """A filter by the properties of messages, which brokers apply: `Sql("region = 'eu' AND amount > 100")`.

    RocketMQ's SQL92: comparisons, `BETWEEN`, `IN`, `IS NULL`, `CONTAINS`, `STARTSWITH`, `ENDSWITH`, `AND`, `OR`, `NOT`.
    The tag is the property `TAGS`.
    """

    expression: str


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer group wants of one topic; `version` grows with every change (ms since 1970)."""

    topic: str
    expression: str
    version: int
    expression_type: str = EXPRESSION_TAG

    @property
    def tags(self) -> TagFilter:
        """The tags that messages must have. Brokers compare codes of tags only, but all of an expression in SQL92."""
        return TagFilter.parse(self.expression if self.expression_type == EXPRESSION_TAG else SUBSCRIBE_ALL)


def subscription(topic: str, wanted: str | Sql, version: int) -> Subscription:
    """The subscription to a topic by a tag expression or `Sql`. Raises `InvalidArgumentError` with what is wrong."""
    try:
        if isinstance(wanted, Sql):
            SqlFilter.parse(wanted.expression)
            return Subscription(topic, wanted.expression, version, EXPRESSION_SQL92)
        TagFilter.parse(wanted)
        return Subscription(topic, wanted or SUBSCRIBE_ALL, version)
    except SubscriptionParseFailed as error:
        raise InvalidArgumentError(error.remark) from error


def subscription_data(wanted: Subscription) -> SubscriptionData:
    """A subscription as a heartbeat says it."""
    tags = wanted.tags
    return SubscriptionData(
        topic=wanted.topic,
        sub_string=wanted.expression,
        tags_set=sorted(tags.tags),
        code_set=sorted(tags.codes),
        sub_version=wanted.version,
        expression_type=wanted.expression_type,
    )
