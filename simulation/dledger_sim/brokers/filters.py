"""Filters: which messages each lets through, of those that are sent here.

What is known of a message is the code of its tag. Expressions in SQL92 therefore ask for the tag, as a property; the
one class that simulated nodes have looks at it.
"""

from __future__ import annotations

from typing import Final

from dledger_remoting.filters.classes import ClassFilter
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.filters.tags import TagFilter, tag_code
from dledger_remoting.properties import TAGS
from dledger_sim.brokers.classes import RED

TAG_CHOICES: Final = ("", "red", "green")
"""The tags that messages are sent with."""


def codes_of(message_filter: MessageFilter | None) -> frozenset[int] | None:
    """The codes of tags that a filter lets through, None if it lets all through."""
    if message_filter is None:
        return None
    if isinstance(message_filter, ClassFilter):
        return frozenset((tag_code(RED),))
    if isinstance(message_filter, TagFilter):
        return None if message_filter.matches_all else message_filter.codes
    return frozenset(tag_code(tag) for tag in TAG_CHOICES if message_filter.matches({TAGS: tag} if tag else {}))
