"""Subscriptions: an expression and its type, as heartbeats and pulls carry them, made a filter."""

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
"""Ours: RocketMQ says by a flag that an expression is the name of a class."""

MessageFilter: TypeAlias = TagFilter | SqlFilter | ClassFilter


def parse_filter(
    expression_type: str | None, expression: str | None, limits: FilterLimits = DEFAULT_LIMITS
) -> MessageFilter | None:
    """The filter of a subscription, None if every message matches; no type means tags.

    Raises `SubscriptionParseFailed` if the expression has a fault, `FilterTooLarge` if it exceeds a limit,
    `UnknownExpressionType` if the type is unknown.
    """
    if not expression_type or expression_type == EXPRESSION_TAG:
        found = TagFilter.parse(expression)
        return None if found.matches_all else found
    if expression_type == EXPRESSION_SQL92:
        return SqlFilter.parse(expression or "", limits)
    if expression_type == EXPRESSION_CLASS:
        return ClassFilter(class_name(expression or ""))
    raise UnknownExpressionType(f"The broker does not support consumer to filter message by {expression_type}")
