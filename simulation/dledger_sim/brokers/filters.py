"""Filters of the simulation: which of the messages that are sent here each filter lets through.

Only the code of a message's tag is known. Expressions in SQL92 therefore test the tag, as a property. The single class
filter of simulated nodes looks at the tag too.
"""

from __future__ import annotations

from typing import Final

from dledger_remoting.filters.subscriptions import ClassFilter, MessageFilter
from dledger_remoting.filters.tags import TagFilter, tag_code
from dledger_remoting.properties import TAGS
from dledger_sim.brokers.classes import RED

TAG_CHOICES: Final = ("", "red", "green")
"""Tags with which messages are sent."""


def codes_of(message_filter: MessageFilter | None) -> frozenset[int] | None:
    """Return the codes of tags that a filter lets through, or None if it accepts all tags."""
    if message_filter is None:
        return None
    if isinstance(message_filter, ClassFilter):
        return frozenset((tag_code(RED),))
    if isinstance(message_filter, TagFilter):
        return None if message_filter.matches_all else message_filter.codes
    return frozenset(tag_code(tag) for tag in TAG_CHOICES if message_filter.matches({TAGS: tag} if tag else {}))
