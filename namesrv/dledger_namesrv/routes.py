"""Routes as clients see them, with write aliases and nodes that stand in, and the list of clusters."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import msgspec

from dledger_remoting.registration import SLICE_TOPICS, Steps
from dledger_remoting.route import BrokerData, ClusterInfo, QueueData, TopicRouteData, encode_route

from .absent import AbsentGroups
from .aliases import aliases_of_topic
from .owners import GroupNames
from .records import CachedRoute, Group, stand_in
from .topics import Topics


class Routes:
    """Routes, clusters and lists of topics, made from what the route table holds."""

    def __init__(self, topics: Topics, groups: Mapping[str, Group], absent: AbsentGroups, names: GroupNames) -> None:
        self._topics = topics
        self._groups = groups
        self._absent = absent
        self._names = names
        self._ordered: frozenset[str] = frozenset()

    def set_ordered(self, topics: Iterable[str]) -> None:
        """Set the topics that an operator has declared as ordered: their routes list no write aliases."""
        former, self._ordered = self._ordered, frozenset(topics)
        for topic in former ^ self._ordered:
            if self._topics.queues(topic):
                self._topics.mark(topic)

    # Sorted lists of names. There may be a million names, so each list is made in slices, with pauses between them.

    def topics(self, *, include_absent: bool) -> Steps[list[str]]:
        """List the topics that have a route. With `include_absent`, also list the topics of absent groups."""
        absent = list(self._absent.by_name.values()) if include_absent else []
        live = map(self._topics.of_group, list(self._groups))
        return _merge_steps(chain(live, (group.queues for group in absent)))

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """List the topics that have queues in a cluster."""
        names = [name for name, group in self._groups.items() if group.cluster == cluster]
        return _merge_steps(map(self._topics.of_group, names))

    def topics_by_flags(self, *, required: int, excluded: int = 0) -> Steps[list[str]]:
        """List the topics that have, in some group, all bits of `required` and none of `excluded` in their sys flag."""

        def flagged(name: str) -> list[str]:
            queues, bits = self._topics.of_group(name), required | excluded
            return [topic for topic, queue in queues.items() if queue.topic_sys_flag & bits == required]

        return _merge_steps(map(flagged, list(self._groups)))

    # Routes

    def of(self, topic: str, *, include_absent: bool = False) -> TopicRouteData | None:
        """Return the route of a topic, None if it has none.

        With `include_absent` the route also lists absent groups, without an address, and the topic's creations. Only
        our clients ask for it. In a group without a live id 0 another node stands in (`stand_in`).
        """
        queues = self._topics.queues(topic)
        if include_absent:
            queues = {**self._absent.queues(topic), **queues}
        else:
            queues = {name: _without_created(queue) for name, queue in queues.items()}
        if not queues:
            return None
        groups = {name: self._broker_data(name) for name in sorted(queues)}
        for name, data in groups.items():
            groups[name], queues[name] = stand_in(data, queues[name], topic)
        aliases = [] if topic in self._ordered else aliases_of_topic(topic, self._groups, queues, groups)
        return TopicRouteData(
            queue_datas=[*(queues[name] for name in groups), *(queue for queue, _ in aliases)],
            broker_datas=[*groups.values(), *(broker for _, broker in aliases)],
        )

    def encoded(self, topic: str, *, standard: bool, include_absent: bool = False) -> bytes | None:
        """Return the route that `of` returns in its encoded form. Equal routes are equal bytes.

        The bytes are cached until the route changes, unless the route lists an absent group.
        """
        if include_absent and self._absent.with_topic(topic):
            full = self.of(topic, include_absent=True)
            return None if full is None else encode_route(full, standard)
        version = self.version(topic)
        cached = self._topics.cached(topic, standard, include_absent)
        if cached is not None and cached.version == version:
            return cached.body
        route = self.of(topic, include_absent=include_absent)
        if route is None:
            return None
        body = encode_route(route, standard)
        self._topics.cache(topic, standard, include_absent, CachedRoute(version, body))
        return body

    def version(self, topic: str) -> int:
        """Return the version at which a topic's route last changed. For an unknown topic it is the version at which any
        topic was last removed.
        """
        names = (*self._topics.groups(topic), *self._absent.with_topic(topic))
        versions = (self._groups[name].version for name in names if name in self._groups)
        return max(self._topics.version_of(topic), *versions, 0)

    def cluster_info(self, *, include_absent: bool = False) -> ClusterInfo:
        """Return all groups as they registered. No node stands in for a missing leader.

        With `include_absent`, absent groups are listed without an address.
        """
        names = sorted({*self._groups, *(self._absent.by_name if include_absent else ())})
        groups = {name: self._broker_data(name) for name in names}
        clusters: dict[str, list[str]] = {}
        for name, group in groups.items():
            clusters.setdefault(group.cluster, []).append(name)
        return ClusterInfo(groups, clusters, self._names.refused() if include_absent else None)

    def _broker_data(self, broker_name: str) -> BrokerData:
        group = self._groups.get(broker_name)
        if group is None:
            return BrokerData(broker_name, self._absent.by_name[broker_name].cluster)
        return BrokerData(broker_name, group.cluster, group.addresses, group.enable_acting_master)


def _without_created(queue: QueueData) -> QueueData:
    return queue if queue.topic_created is None else msgspec.structs.replace(queue, topic_created=None)


def _merge_steps(topic_lists: Iterable[Collection[str]]) -> Steps[list[str]]:
    runs: list[list[str]] = []
    for names in topic_lists:
        unsorted = list(names)  # the group's topics may change during a pause
        for begin in range(0, len(unsorted), SLICE_TOPICS):
            runs.append(sorted(unsorted[begin : begin + SLICE_TOPICS]))
            yield
    merged: list[str] = []
    for number, name in enumerate(heapq.merge(*runs)):
        if number % SLICE_TOPICS == SLICE_TOPICS - 1:
            yield
        if not merged or merged[-1] != name:
            merged.append(name)
    return merged
