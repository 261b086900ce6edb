"""Counts of the messages that a node has stored, by topic, and that consumer groups have got, by group and topic.

Each stored unit and each answer to a consumer is counted in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_PAIRS: Final = 10_000
"""Maximum number of (group, topic) pairs counted. Further pairs are ignored."""


MAX_TOPICS: Final = 10_000
"""Maximum number of topics counted. Further topics are ignored."""


class Delivered:
    """Messages of one topic that one group has got, in `times` answers. These numbers only grow."""

    __slots__ = ("messages", "size", "times")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.times = 0


class Deliveries:
    """The counts of all pairs."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], Delivered] = {}

    @property
    def pairs(self) -> Mapping[tuple[str, str], Delivered]:
        """Counts by group and topic."""
        return self._pairs

    def count(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count messages of a topic, `size` bytes in all, that a group has got."""
        delivered = self._pairs.get((group, topic))
        if delivered is None:
            if len(self._pairs) >= MAX_PAIRS:
                return
            delivered = self._pairs[group, topic] = Delivered()
        delivered.messages += messages
        delivered.size += size
        delivered.times += 1

    def forget(self, group: str, topic: str) -> None:
        """Forget the count of a pair, so that it begins at 0 again. Does nothing for a pair without a count."""
        self._pairs.pop((group, topic), None)


class TopicSizes:
    """Bytes and number of messages, by topic."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[str, tuple[int, int]] = {}

    @property
    def by_topic(self) -> Mapping[str, tuple[int, int]]:
        """Bytes and number of messages, by topic."""
        return self._by_topic

    def count(self, topic: str, size: int, messages: int) -> None:
        """Count messages of a topic, `size` bytes in all."""
        found = self._by_topic.get(topic)
        if found is not None:
            self._by_topic[topic] = (found[0] + size, found[1] + messages)
        elif len(self._by_topic) < MAX_TOPICS:
            self._by_topic[topic] = (size, messages)

    def forget(self, topic: str) -> None:
        """Forget the count of a topic, so that it begins at 0 again. Does nothing for a topic without a count."""
        self._by_topic.pop(topic, None)
