"""Subscriptions: makes a filter of an expression and its type, as heartbeats and pulls carry them.

Class filters are those of RocketMQ 3: a subscription names a class, and the filtering side has the code. The name
selects among the filters that the filtering side lists; it loads no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from dledger_remoting.errors import SubscriptionParseFailed, UnknownExpressionType
from dledger_remoting.filters.limits import DEFAULT_LIMITS, FilterLimits
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.tags import TagFilter

MAX_NAME_CHARS: Final = 255
_is_name: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]*", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class ClassFilter:
    """A filter by the code that is listed as `name`."""

    name: str


def class_name(text: str) -> str:
    """Return the text if it is a class name, such as `com.example.Large`; else raise `SubscriptionParseFailed`."""
    if len(text) > MAX_NAME_CHARS or _is_name(text) is None:
        shown = text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}..."
        raise SubscriptionParseFailed(
            f"{shown!r} is no name of a class: at most {MAX_NAME_CHARS} letters, digits and _ $ . -, a letter first"
        )
    return text


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
