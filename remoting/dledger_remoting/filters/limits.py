"""Limits on the expressions of subscriptions. Clients write them, and brokers have to evaluate them."""

from __future__ import annotations

from typing import Final, NamedTuple

from dledger_remoting.errors import SubscriptionParseFailed

MAX_EXPRESSION_CHARS: Final = 32_767
"""Maximum length of an expression in characters. A longer one is never parsed."""
MAX_DEPTH: Final = 64
"""Maximum of the depth limit: trees are walked by recursion."""
MAX_OPERANDS: Final = 1_024


class FilterLimits(NamedTuple):
    """Limits on an SQL92 expression: the depth of its nesting, and the number of its literals and property names."""

    depth: int = MAX_DEPTH
    operands: int = MAX_OPERANDS


DEFAULT_LIMITS: Final = FilterLimits()


class FilterTooLarge(SubscriptionParseFailed):
    """An expression exceeds the limit that `limit` names: `chars`, `depth` or `operands`."""

    def __init__(self, remark: str, limit: str) -> None:
        super().__init__(remark)
        self.limit = limit
