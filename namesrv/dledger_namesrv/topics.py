"""Topics of the broker groups that have a live node: queues by group, groups by topic, versions of routes.

A group that goes takes its topics along at once, however many it has. `_groups` may name the group until `tidy` has
come to its topics. So each look-up also checks `_queues`. `_removal_versions` has the version at which the group went.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, islice, product
from typing import Final, Generic, TypeVar

from dledger_remoting.registration import SLICE_TOPICS
from dledger_remoting.route import QueueData

from .records import CachedRoute

TIDIED_AT_ONCE: Final = SLICE_TOPICS
"""Number of topics that are tidied without a pause."""


SHARDS: Final = 32
"""Number of parts of a table with all topics: a table of a million is copied for 50 ms when it grows."""

ValueT = TypeVar("ValueT")


class _Sharded(Generic[ValueT]):
    """A table in parts. `of` returns the part of a key."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[dict[str, ValueT]] = [{} for _ in range(SHARDS)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def of(self, key: str) -> dict[str, ValueT]:
        """Return the part that has a key, if any part has it."""
        return self._parts[hash(key) % SHARDS]


class Topics:
    """Table of these topics. `version` grows with every change that a route can show."""

    def __init__(self, first_version: int) -> None:
        self.version = first_version
        self.route_count = 0
        """Topics of all groups, added up."""
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._groups: _Sharded[tuple[str, ...]] = _Sharded()
        self._versions: _Sharded[int] = _Sharded()
        self._last_removal = first_version
        self._removal_versions: dict[str, int] = {}
        self._untidy: deque[tuple[str, Iterator[str]]] = deque()
        """Groups that have gone, and their topics that are still to be tidied."""
        self._changed: set[str] = set()
        self._encoded: dict[tuple[str, bool, bool], CachedRoute] = {}

    def __len__(self) -> int:
        """Number of topics; topics of groups that went count until they are tidied."""
        return len(self._groups)

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        return [topic for topic in self._groups if not self._untidy or self.queues(topic)]

    def queues(self, topic: str) -> dict[str, QueueData]:
        """Return a topic's queues by group."""
        queues_by_group = {}
        for name in self._groups.of(topic).get(topic, ()):
            queue = self._queues.get(name, {}).get(topic)
            if queue is not None:
                queues_by_group[name] = queue
        return queues_by_group

    def of_group(self, name: str) -> Mapping[str, QueueData]:
        """Return the queues of a group by topic: a view, which changes with them."""
        return self._queues.get(name, {})

    def groups(self, topic: str) -> tuple[str, ...]:
        """Return the groups that hold a topic, and perhaps groups that went lately."""
        return self._groups.of(topic).get(topic, ())

    def put(self, topic: str, queue: QueueData) -> None:
        """Set the queues that a group has of a topic."""
        name = queue.broker_name
        group_queues = self._queues.setdefault(name, {})
        former = group_queues.get(topic)
        if former == queue:
            return
        if former is None:
            self.route_count += 1
            known = self._groups.of(topic).get(topic, ())
            if name not in known:
                self._groups.of(topic)[topic] = (*known, name)
        group_queues[topic] = queue
        self.mark(topic)

    def remove(self, topic: str, name: str) -> None:
        """Remove a topic that a group holds."""
        group_queues = self._queues[name]
        del group_queues[topic]
        if not group_queues:
            del self._queues[name]
        self.route_count -= 1
        self._unlist(topic, name)
        self.mark(topic)

    def remove_group(self, name: str) -> dict[str, QueueData]:
        """Remove a group with all its topics; return its queues by topic."""
        group_queues = self._queues.pop(name, {})
        self.route_count -= len(group_queues)
        if group_queues:
            self._removal_versions[name] = self._last_removal = self.next_version()
            self._untidy.append((name, iter(list(group_queues))))
            if len(group_queues) <= TIDIED_AT_ONCE and len(self._untidy) == 1:
                self.tidy()
        return group_queues

    def tidy(self) -> bool:
        """Tidy the next topics of groups that have gone; return whether there are more."""
        if not self._untidy:
            return False
        name, topics = self._untidy[0]
        count = 0
        for topic in islice(topics, TIDIED_AT_ONCE):
            count += 1
            if topic not in self._queues.get(name, ()):
                self._unlist(topic, name)
        if count < TIDIED_AT_ONCE:
            self._untidy.popleft()
            if all(other != name for other, _ in self._untidy):
                del self._removal_versions[name]
        return bool(self._untidy)

    def _unlist(self, topic: str, name: str) -> None:
        known = self._groups.of(topic).get(topic, ())
        if name not in known:
            return
        version = max(self._versions.of(topic).get(topic, 0), self._removal_versions.get(name, 0))
        left = tuple(other for other in known if other != name)
        if left:
            self._groups.of(topic)[topic], self._versions.of(topic)[topic] = left, version
            return
        del self._groups.of(topic)[topic]
        self._versions.of(topic).pop(topic, None)
        self._last_removal = max(self._last_removal, version)
        for standard, is_ours in product((False, True), repeat=2):
            self._encoded.pop((topic, standard, is_ours), None)

    # Versions

    def next_version(self) -> int:
        """Return the next version."""
        self.version += 1
        return self.version

    def mark(self, topic: str) -> None:
        """Give a topic a new version: its route, with absent groups or without, has changed."""
        version = self.next_version()
        self._changed.add(topic)
        if topic in self._groups.of(topic):
            self._versions.of(topic)[topic] = version
        else:
            self._last_removal = version

    def mark_all(self, topics: Collection[str]) -> None:
        """Give many topics one new version."""
        version = self._last_removal = self.next_version()
        self._changed.update(topics)
        for topic in topics:
            versions = self._versions.of(topic)
            if topic in versions:
                versions[topic] = version

    def version_of(self, topic: str) -> int:
        """Return the version at which a topic's own route last changed, or, without queues, any topic was removed."""
        known = self._groups.of(topic).get(topic)
        if known is None:
            return self._last_removal
        version = self._versions.of(topic)[topic]
        if self._removal_versions:
            version = max(version, *(self._removal_versions.get(name, 0) for name in known))
            if not self.queues(topic):
                version = max(version, self._last_removal)
        return version

    def take_changed(self) -> set[str]:
        """Return the topics that were marked since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # Texts

    def cached(self, topic: str, standard: bool, is_ours: bool) -> CachedRoute | None:
        """Return the text of a topic's route that was made last. Clients of ours get another one."""
        return self._encoded.get((topic, standard, is_ours))

    def cache(self, topic: str, standard: bool, is_ours: bool, route: CachedRoute) -> None:
        """Keep the text of a topic's route."""
        self._encoded[topic, standard, is_ours] = route
