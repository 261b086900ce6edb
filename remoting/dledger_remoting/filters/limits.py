"""Limits on the expressions of subscriptions, which are a client's and are evaluated by a broker."""

from __future__ import annotations

from typing import Final, NamedTuple

from dledger_remoting.errors import SubscriptionParseFailed

MAX_EXPRESSION_CHARS: Final = 32_767
"""A longer one is never parsed."""
MAX_DEPTH: Final = 64
"""Trees are walked by recursion: no limit may be set above this one."""
MAX_OPERANDS: Final = 1_024


class FilterLimits(NamedTuple):
    """How deep an expression in SQL92 may be nested, and how many literals and names of properties it may have."""

    depth: int = MAX_DEPTH
    operands: int = MAX_OPERANDS


DEFAULT_LIMITS: Final = FilterLimits()


class FilterTooLarge(SubscriptionParseFailed):
    """An expression exceeds a limit; `limit` is which: `chars`, `depth` or `operands`."""

    def __init__(self, remark: str, limit: str) -> None:
        super().__init__(remark)
        self.limit = limit
