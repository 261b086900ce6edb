"""Subscriptions: makes a filter of an expression and its type, as heartbeats and pulls carry them."""

from __future__ import annotations

from typing import Final, TypeAlias

from dledger_remoting.errors import UnknownExpressionType
from dledger_remoting.filters.classes import ClassFilter, class_name
from dledger_remoting.filters.limits import DEFAULT_LIMITS, FilterLimits
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.tags import TagFilter

EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
EXPRESSION_CLASS: Final = "CLASS"
"""A type of ours: RocketMQ marks the name of a class by a flag instead."""

MessageFilter: TypeAlias = TagFilter | SqlFilter | ClassFilter


def parse_filter(
    expression_type: str | None, expression: str | None, limits: FilterLimits = DEFAULT_LIMITS
) -> MessageFilter | None:
    """Return the filter of a subscription, None if every message matches. No type means tags.

    Raises `SubscriptionParseFailed` if the expression has a fault, `FilterTooLarge` if it exceeds a limit,
    `UnknownExpressionType` if the type is unknown.
    """
    if not expression_type or expression_type == EXPRESSION_TAG:
        tag_filter = TagFilter.parse(expression)
        return None if tag_filter.matches_all else tag_filter
    if expression_type == EXPRESSION_SQL92:
        return SqlFilter.parse(expression or "", limits)
    if expression_type == EXPRESSION_CLASS:
        return ClassFilter(class_name(expression or ""))
    raise UnknownExpressionType(f"The broker does not support consumer to filter message by {expression_type}")
