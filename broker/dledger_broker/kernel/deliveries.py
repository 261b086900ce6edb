"""Counts of what consumer groups have got from this node, by group and topic: one step for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_PAIRS: Final = 10_000
"""So many pairs of a group and a topic are counted; a pair that comes later, while there are so many, is not."""


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
