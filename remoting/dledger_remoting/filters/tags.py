"""Tag filters: brokers compare hash codes of tags. Clients then compare the tags themselves, so equal codes do no harm.

The code of a tag is Java's `String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dledger_remoting.errors import SubscriptionParseFailed
from dledger_remoting.filters.limits import MAX_EXPRESSION_CHARS, FilterTooLarge

SUBSCRIBE_ALL: Final = "*"
_BLANKS: Final = "".join(map(chr, range(33)))
"""Characters that Java's `String.trim` removes.

Python's `strip` also removes characters that a tag may contain, such as U+3000.
"""
SHORT_CHARS: Final = 1_024
"""Maximum length of an expression, in characters, for the larger cache.

The filter of a longer expression may take a megabyte, so fewer of these filters are kept.
"""


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of `text`, a signed 32-bit integer."""
    code = 0
    units = text.encode("utf-16-be", errors="surrogatepass")
    for position in range(0, len(units), 2):
        code = (code * 31 + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code


@lru_cache(maxsize=4096)
def tag_code(tag: str) -> int:
    """Return the code that a consume queue holds for a message with this tag; 0 for a message without a tag."""
    return java_hash(tag) if tag else 0


def split_tags(expression: str) -> list[str]:
    """Return the tags of `a || b`; `*` has none."""
    if expression.strip(_BLANKS) == SUBSCRIBE_ALL:
        return []
    return [tag for part in expression.split("||") if (tag := part.strip(_BLANKS))]


def is_one_tag(tag: str) -> bool:
    """Return whether a subscription can name this tag.

    Producers check that, because no consumer could select the message otherwise.
    """
    return tag == SUBSCRIBE_ALL or split_tags(tag) == [tag]


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression and the codes of its tags. Empty sets mean that every message matches."""

    tags: frozenset[str]
    codes: frozenset[int]

    @staticmethod
    def parse(expression: str | None) -> TagFilter:
        """Return the filter of `a || b`. None, an empty text and `*` match every message.

        Raises `SubscriptionParseFailed` if there is nothing between the bars or the text is too long.
        """
        parse = _parse_short if expression is None or len(expression) <= SHORT_CHARS else _parse_long
        return parse(expression or SUBSCRIBE_ALL)

    @property
    def matches_all(self) -> bool:
        """True if every message matches."""
        return not self.tags

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message with this tag matches."""
        return not self.tags or tag in self.tags


def _parse(expression: str) -> TagFilter:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise FilterTooLarge(
            f"tag expression of {len(expression)} characters is longer than {MAX_EXPRESSION_CHARS}", "chars"
        )
    if expression.strip(_BLANKS) in ("", SUBSCRIBE_ALL):
        return TagFilter(frozenset(), frozenset())
    tags = frozenset(split_tags(expression))
    if not tags:
        raise SubscriptionParseFailed(f"tag expression {expression!r} names no tag, expected 'a || b' or '*'")
    return TagFilter(tags, frozenset(map(tag_code, tags)))


_parse_short: Final = lru_cache(maxsize=1024)(_parse)
_parse_long: Final = lru_cache(maxsize=64)(_parse)
