"""Absent broker groups, whose last node has gone, and the queues that they held."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from dledger_remoting.route import QueueData

from .records import KnownGroup, TableLimits


class AbsentGroups:
    """Absent groups in the order in which they went.

    A group stays until its leader has registered its present topics.
    """

    def __init__(self, known: Mapping[str, KnownGroup] | None = None) -> None:
        self._groups = dict(known or {})
        self.by_name: Mapping[str, KnownGroup] = MappingProxyType(self._groups)

    def add(self, name: str, group: KnownGroup) -> None:
        """Record a group that has gone."""
        self._groups[name] = group

    def remove(self, name: str) -> KnownGroup | None:
        """Remove a group that is back, or gone for good, and return its record; None if it was not absent."""
        return self._groups.pop(name, None)

    def with_topic(self, topic: str) -> list[str]:
        """Return the groups that hold a topic. Of an absent group, at most followers are back."""
        return [name for name, group in self._groups.items() if topic in group.queues]

    def queues(self, topic: str) -> dict[str, QueueData]:
        """Return a topic's queues by the groups that hold them."""
        return {name: self._groups[name].queues[topic] for name in self.with_topic(topic)}

    def drop_topic(self, topic: str, cluster: str | None) -> bool:
        """Forget a topic's queues: those of one cluster if it is named, else all. Returns True if there were any."""
        names = [name for name in self.with_topic(topic) if cluster is None or self._groups[name].cluster == cluster]
        for name in names:
            group = self._groups[name]
            left = {other: queue for other, queue in group.queues.items() if other != topic}
            self._groups[name] = msgspec.structs.replace(group, queues=left)
        return bool(names)

    def too_many(self, limits: TableLimits, returning: Collection[str]) -> list[str]:
        """Return the groups to forget so that the others are within the limits: longest absent first, none that is
        `returning`.
        """
        count, topic_count = len(self._groups), sum(len(group.queues) for group in self._groups.values())
        doomed: list[str] = []
        for name, group in self._groups.items():
            if count <= limits.max_absent_groups and topic_count <= limits.max_routes:
                break
            if name not in returning:
                doomed.append(name)
                count, topic_count = count - 1, topic_count - len(group.queues)
        return doomed
