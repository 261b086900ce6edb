"""Counts of what a node has stored, by topic, and of what consumer groups have got from it, by group and topic: one
step for each unit, and for each answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_PAIRS: Final = 10_000
"""So many pairs of a group and a topic are counted; a pair that comes later, while there are so many, is not."""


MAX_TOPICS: Final = 10_000
"""So many topics are counted; one that comes later, while there are so many, is not."""


class Delivered:
    """What one group has got of one topic; these numbers only grow. An answer is one of `times`."""

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
        """By group and topic."""
        return self._pairs

    def count(self, group: str, topic: str, messages: int, size: int) -> None:
        """A group has got messages of a topic, `size` bytes in all."""
        delivered = self._pairs.get((group, topic))
        if delivered is None:
            if len(self._pairs) >= MAX_PAIRS:
                return
            delivered = self._pairs[group, topic] = Delivered()
        delivered.messages += messages
        delivered.size += size
        delivered.times += 1

    def forget(self, group: str, topic: str) -> None:
        """Count from 0 again; what is not counted is no error."""
        self._pairs.pop((group, topic), None)


class TopicSizes:
    """Bytes by topic, and in how many steps they came."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[str, tuple[int, int]] = {}

    @property
    def by_topic(self) -> Mapping[str, tuple[int, int]]:
        """Bytes and messages."""
        return self._by_topic

    def count(self, topic: str, size: int, messages: int) -> None:
        """Messages of a topic, `size` bytes in all."""
        found = self._by_topic.get(topic)
        if found is not None:
            self._by_topic[topic] = (found[0] + size, found[1] + messages)
        elif len(self._by_topic) < MAX_TOPICS:
            self._by_topic[topic] = (size, messages)

    def forget(self, topic: str) -> None:
        """Count from 0 again; what is not counted is no error."""
        self._by_topic.pop(topic, None)
