"""Long polls for route changes: watches that wait for topics.

Changed topics lead to their watches, so a change costs in proportion to the watches that wait for it. Each turn of the
event loop checks a bounded number of topics, and wakes a bounded number of watches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from .table import RouteTable

MAX_WATCH_TOPICS: Final = 256
MAX_WATCH_CHARS: Final = 32 << 10
"""Maximum length of the topics of one watch in characters. Our clients split longer watches."""
WATCH_BYTES: Final = 4 << 10
"""Estimated size of a waiting watch beside its topics, in bytes."""
PAIR_BYTES: Final = 96
"""Estimated size in bytes of a topic in a watch's list, together with the watch in the topic's list."""
TOPIC_BYTES: Final = 400
"""Estimated size of a watched topic beside its name, in bytes."""
LOOKED_AT_PER_TURN: Final = 8_192
WOKEN_PER_TURN: Final = 512


class _Watch:
    __slots__ = ("topics", "woken")

    def __init__(self, topics: Sequence[str], woken: asyncio.Future[None]) -> None:
        self.topics = topics
        self.woken = woken


class RouteWatches:
    """The pending watches of one route table. Call `notify` after each change of the table."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._watches: dict[_Watch, None] = {}
        self._by_topic: dict[str, set[_Watch]] = {}
        self.held_bytes = 0
        """Size of the waiting watches, in bytes."""
        self._checked_version = table.version
        self._is_scheduled = False
        self._topics_to_check: deque[str] = deque()
        """Watched topics to be checked because a broker group has changed."""
        self._changed_groups: frozenset[str] = frozenset()
        """The broker groups that have changed."""
        self._watches_to_wake: deque[_Watch] = deque()

    def __len__(self) -> int:
        """Return the number of waiting watches."""
        return len(self._watches)

    def size_of(self, topics: Sequence[str]) -> int:
        """Return the size of one more watch in bytes. A topic that is named twice counts once."""
        distinct = set(topics)
        names = sum(TOPIC_BYTES + 4 * len(topic) for topic in distinct if topic not in self._by_topic)
        return WATCH_BYTES + PAIR_BYTES * len(distinct) + names

    async def wait(self, topics: Sequence[str], version: int, timeout_s: float) -> int:
        """Return the table's version once one of the topics has changed since `version`, or after the time limit."""
        if not self._table.changed_since(topics, version):
            loop = asyncio.get_running_loop()
            watch = _Watch(topics, loop.create_future())
            self._add(watch)
            timer = loop.call_later(timeout_s, _wake, watch)
            try:
                await watch.woken
            finally:
                timer.cancel()
                self._discard(watch)
        return self._table.version

    def notify(self) -> None:
        """Check the watches in the next turn of the event loop if the table has changed."""
        if self._table.version != self._checked_version and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._check_watches)

    def release(self) -> None:
        """Answer every watch now."""
        for watch in self._watches:
            _wake(watch)

    def _add(self, watch: _Watch) -> None:
        self._watches[watch] = None
        self.held_bytes += self.size_of(watch.topics)
        for topic in watch.topics:
            self._by_topic.setdefault(topic, set()).add(watch)

    def _discard(self, watch: _Watch) -> None:
        if watch not in self._watches:
            return
        del self._watches[watch]
        for topic in watch.topics:
            waiting = self._by_topic.get(topic)
            if waiting is not None:
                waiting.discard(watch)
                if not waiting:
                    del self._by_topic[topic]
        self.held_bytes -= self.size_of(watch.topics)

    def _check_watches(self) -> None:
        """Wake watches of changed topics, a bounded number of them. If others are left, continue in the next turn."""
        table = self._table
        if self._checked_version != table.version:
            self._checked_version = table.version
            topics, groups = table.take_changes()
            for topic in topics & self._by_topic.keys():
                self._watches_to_wake.extend(self._by_topic[topic])
            if groups:
                self._changed_groups |= groups
                self._topics_to_check = deque(self._by_topic)
        for _ in range(min(LOOKED_AT_PER_TURN, len(self._topics_to_check))):
            topic = self._topics_to_check.popleft()
            if topic in self._by_topic and table.is_of_groups(topic, self._changed_groups):
                self._watches_to_wake.extend(self._by_topic[topic])
        if not self._topics_to_check:
            self._changed_groups = frozenset()
        for watch in list(islice(self._watches_to_wake, WOKEN_PER_TURN)):
            self._watches_to_wake.popleft()
            _wake(watch)
        if self._topics_to_check or self._watches_to_wake:
            asyncio.get_running_loop().call_soon(self._check_watches)
        else:
            self._is_scheduled = False
            self.notify()


def _wake(watch: _Watch) -> None:
    if not watch.woken.done():
        watch.woken.set_result(None)
