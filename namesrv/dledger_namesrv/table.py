"""The route registry: registrations in, routes out. Pure: time is an argument, connections are opaque numbers.

The algorithm is RocketMQ's `RouteInfoManager`, with the Raft term (`DataVersion.state_version`) as a fence: nothing
that was said in an older term displaces or removes a leader (broker id 0) that registered in a newer one.

Beyond it, a group whose last node has gone is *absent*: what it held is remembered, and shown to those who ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger_remoting.headers import BrokerNodeHeader, RegisterBrokerHeader
from dledger_remoting.registration import DataVersion, RegisterBrokerBody, TopicChangesBody
from dledger_remoting.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData, encode_route
from dledger_remoting.topics import PERM_READ_WRITE, PERM_WRITE, TopicConfig

from .absent import AbsentGroups
from .aliases import aliases_after, aliases_of_topic, has_aliases
from .records import (
    CachedRoute,
    Group,
    KnownGroup,
    Node,
    NodeKey,
    Registered,
    TableLimits,
    is_news,
    is_topic_source,
    queue_data,
    with_master,
)

DEFAULT_NODE_TIMEOUT_MS: Final = 120_000


class RouteTable:
    """All broker groups and topics that one name server knows; `absent` is what one before it knew.

    `version` grows with every change that a route can show; it starts at `first_version`, for which the start time in
    ms is a good choice, so that it also grows over restarts.
    """

    def __init__(
        self,
        *,
        first_version: int = 1,
        delete_missing_topics: bool = False,
        absent: Mapping[str, KnownGroup] | None = None,
        limits: TableLimits | None = None,
    ) -> None:
        self.absent_groups_forgotten = 0
        """How often a limit made the table forget one."""
        self._limits = limits or TableLimits()
        self._route_count = 0
        self.delete_missing_topics = delete_missing_topics
        self._version = first_version
        self._last_removal = first_version
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._topic_versions: dict[str, int] = {}
        self._groups: dict[str, Group] = {}
        self._absent = AbsentGroups(absent)
        self._nodes: dict[NodeKey, Node] = {}
        self._encoded: dict[tuple[str, bool], CachedRoute] = {}
        self._ordered: frozenset[str] = frozenset()

    @property
    def version(self) -> int:
        """Grows with every change of any route."""
        return self._version

    def topics(self, *, include_absent: bool = False) -> list[str]:
        """The names of all topics that have a route, or that an absent group holds, sorted."""
        absent = self._absent.by_name.values() if include_absent else ()
        return sorted({*self._topics, *(topic for group in absent for topic in group.queues)})

    @property
    def node_count(self) -> int:
        """How many nodes are alive."""
        return len(self._nodes)

    @property
    def group_count(self) -> int:
        """How many broker groups have a live node."""
        return len(self._groups)

    @property
    def topic_count(self) -> int:
        """How many topics have a route."""
        return len(self._topics)

    @property
    def route_count(self) -> int:
        """Topics of all broker groups that have a live node, added up."""
        return self._route_count

    @property
    def absent_group_count(self) -> int:
        """How many broker groups are known and have no live node."""
        return len(self._absent.by_name.keys() - self._groups.keys())

    def known_groups(self) -> dict[str, KnownGroup]:
        """What the groups hold, absent ones included; those without a topic are left out."""
        held: dict[str, dict[str, QueueData]] = {}
        for topic, queues in sorted(self._topics.items()):
            for name, queue in queues.items():
                held.setdefault(name, {})[topic] = queue
        live = {
            name: KnownGroup(self._groups[name].cluster, queues, self._groups[name].aliases)
            for name, queues in sorted(held.items())
        }
        return {**self._absent.by_name, **live}

    # Registration

    def register(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, now_ms: int, connection: int
    ) -> Registered:
        """Take a node's registration, which also counts as its heartbeat. `connection` is where it came from."""
        wrapper = body.topic_config_serialize_wrapper
        term = wrapper.data_version.state_version
        group = self._groups.get(header.broker_name)
        refusal = self._refusal(group, header, term, len(wrapper.topic_config_table))
        if refusal:
            return Registered(refusal)
        limit = self._exceeded(group, header, wrapper.topic_config_table)
        if limit:
            return Registered(f"there would be more than {limit} = {getattr(self._limits, limit)}", limit=limit)
        if group is None:
            former_group = self._absent.by_name.get(header.broker_name)
            aliases = {} if former_group is None else former_group.aliases
            group = self._groups[header.broker_name] = Group({}, self._next_version(), aliases=aliases)
        key = NodeKey(header.cluster_name, header.broker_addr)
        former = self._nodes.get(key)
        if former is not None and former.broker_name != header.broker_name:
            self._remove_node(key, former)
        self._set_node(group, key, header)
        aliases = aliases_after(group, header)
        if aliases != group.aliases:
            group.aliases, group.version = aliases, self._next_version()
        if header.broker_id == MASTER_ID:
            group.leader_term = term
        self._nodes[key] = Node(
            header.broker_name,
            header.broker_id,
            wrapper.data_version,
            header.ha_server_addr,
            connection,
            now_ms,
            header.heartbeat_timeout_millis or DEFAULT_NODE_TIMEOUT_MS,
        )
        if is_topic_source(group, header.broker_id) and is_news(group, header, wrapper.data_version):
            group.topics_version, group.edited = wrapper.data_version, False
            complete = header.topics_complete or self.delete_missing_topics
            self._set_topics(group, header.broker_name, wrapper.topic_config_table, complete=complete)
        return self._answer(group, header)

    def change_topics(self, sender: BrokerNodeHeader, changes: TopicChangesBody, *, now_ms: int) -> bool:
        """Take what has changed of a node's topics, which costs no more than that; counts as its heartbeat.

        False, and nothing is changed, unless the node stands here under the same id, as of the version that the changes
        begin with, and of the same term: it is to register as a whole then, which is fenced. So it is if there would be
        too many topics, which that is told.
        """
        if changes.data_version.state_version != changes.base.state_version:
            return False
        key = NodeKey(sender.cluster_name, sender.broker_addr)
        node, group = self._nodes.get(key), self._groups.get(sender.broker_name)
        if node is None or group is None or group.nodes.get(sender.broker_id) != key:
            return False
        source = is_topic_source(group, sender.broker_id)
        if node.data_version != changes.base or (source and (group.edited or group.topics_version != changes.base)):
            return False
        name = sender.broker_name
        gone = sum(name in self._topics.get(topic, {}) for topic in changes.deleted)
        if source and self._too_many_routes(name, changes.topic_config_table, gone=gone):
            return False
        node.data_version, node.last_seen_ms = changes.data_version, now_ms
        if source:
            group.topics_version = changes.data_version
            for config in changes.topic_config_table.values():
                topic, queue = config.topic_name, queue_data(sender.broker_name, config)
                self._set_topic(group, topic, queue, aliased=has_aliases(config))
            for topic in changes.deleted:
                if sender.broker_name in self._topics.get(topic, {}):
                    self._remove_queues(topic, sender.broker_name)
        return True

    def unregister(self, broker_name: str, cluster: str, address: str, broker_id: int, term: int | None = None) -> bool:
        """Remove a node that says goodbye; True if it was there under this id.

        With `term` given, a goodbye said in an older term than the node's last registration does nothing.
        """
        key = NodeKey(cluster, address)
        node = self._nodes.get(key)
        if node is None or node.broker_name != broker_name or node.broker_id != broker_id:
            return False
        if term is not None and term < node.data_version.state_version:
            return False
        self._remove_node(key, node)
        return True

    def drop_connection(self, connection: int) -> list[NodeKey]:
        """Remove the nodes whose last registration came over a connection that is now gone."""
        return self._remove_nodes(key for key, node in self._nodes.items() if node.connection == connection)

    def expire(self, now_ms: int) -> list[NodeKey]:
        """Remove the nodes that have been silent for longer than they promised."""
        return self._remove_nodes(
            key for key, node in self._nodes.items() if now_ms - node.last_seen_ms > node.timeout_ms
        )

    def refresh(self, cluster: str, address: str, now_ms: int) -> bool:
        """Count a node's heartbeat; False if the node is not registered."""
        node = self._nodes.get(NodeKey(cluster, address))
        if node is None:
            return False
        node.last_seen_ms = now_ms
        return True

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """What a node's last registration gave as its data version."""
        node = self._nodes.get(NodeKey(cluster, address))
        return None if node is None else node.data_version

    # Topics

    def forget_group(self, name: str) -> bool:
        """Forget an absent group, which is gone for good; False if it is not absent."""
        if name in self._groups or (group := self._absent.remove(name)) is None:
            return False
        for topic in group.queues:
            self._mark_changed(topic)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forget a topic's queues, those of one cluster only if it is named; True if there were any."""
        queues = self._topics.get(topic, {})
        doomed = [name for name in queues if cluster is None or self._groups[name].cluster == cluster]
        for name in doomed:
            self._remove_queues(topic, name)
            self._groups[name].edited = True
        dropped = self._absent.drop_topic(topic, cluster)
        if dropped:
            self._mark_changed(topic)
        return bool(doomed) or dropped

    def set_write_permission(self, broker_name: str, *, writable: bool) -> int:
        """Take the write bit from all topics of a broker group, or set their permission to 6; how many there are.

        It holds until the group registers a changed data version, for which it is asked to name all its topics.
        """
        count = 0
        for topic, queues in self._topics.items():
            queue = queues.get(broker_name)
            if queue is not None:
                count += 1
                perm = PERM_READ_WRITE if writable else queue.perm & ~PERM_WRITE
                self._set_queues(topic, msgspec.structs.replace(queue, perm=perm))
                self._groups[broker_name].edited = True
        return count

    def set_ordered(self, topics: Iterable[str]) -> None:
        """The topics that are ordered by an operator's word: their routes list no write aliases."""
        former, self._ordered = self._ordered, frozenset(topics)
        for topic in (former ^ self._ordered) & self._topics.keys():
            self._mark_changed(topic)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that have queues in a cluster, sorted."""
        names = {name for name, group in self._groups.items() if group.cluster == cluster}
        return sorted(topic for topic, queues in self._topics.items() if not names.isdisjoint(queues))

    def topics_by_flags(self, *, required: int, excluded: int = 0) -> list[str]:
        """The topics that have, in some group, all bits of `required` and none of `excluded` in their sys flag."""
        return sorted(
            topic
            for topic, queues in self._topics.items()
            if any(q.topic_sys_flag & required == required and not q.topic_sys_flag & excluded for q in queues.values())
        )

    # Reading

    def route(self, topic: str, *, include_absent: bool = False) -> TopicRouteData | None:
        """Where a topic lives, None if nowhere; absent groups, if they are asked for, may have no address.

        A group without a live id 0 gets one made up, the lowest live id, which also keeps its own: followers pass on
        what only a leader may do, while a client that sees no id 0 stops sending for 30 s.
        """
        queues = dict(self._topics.get(topic, {}))
        if include_absent:
            queues |= self._absent.queues(topic)
        if not queues:
            return None
        groups = {name: with_master(self._broker_data(name)) for name in sorted(queues)}
        aliases = [] if topic in self._ordered else aliases_of_topic(topic, self._groups, queues, groups)
        return TopicRouteData(
            queue_datas=[*(queues[name] for name in groups), *(queue for queue, _ in aliases)],
            broker_datas=[*groups.values(), *(broker for _, broker in aliases)],
        )

    def encoded_route(self, topic: str, *, standard: bool, include_absent: bool = False) -> bytes | None:
        """The text of `route`, made once per change of the route unless an absent group is in it.

        Equal routes are equal bytes.
        """
        if include_absent and self._absent.with_topic(topic):
            full = self.route(topic, include_absent=True)
            return None if full is None else encode_route(full, standard)
        version = self.route_version(topic)
        cached = self._encoded.get((topic, standard))
        if cached is not None and cached.version == version:
            return cached.body
        route = self.route(topic)
        if route is None:
            return None
        body = encode_route(route, standard)
        self._encoded[topic, standard] = CachedRoute(version, body)
        return body

    def route_version(self, topic: str) -> int:
        """The version at which a topic's route last changed; for an unknown topic, when any topic was last removed."""
        queues = self._topics.get(topic, {})
        groups = [name for name in (*queues, *self._absent.with_topic(topic)) if name in self._groups]
        changed = self._topic_versions[topic] if queues else self._last_removal
        return max((changed, *(self._groups[name].version for name in groups)))

    def changed_since(self, topics: Iterable[str], version: int) -> bool:
        """True if the route of one of the topics is newer than `version`, or `version` is not one of this table."""
        return version > self._version or any(self.route_version(topic) > version for topic in topics)

    def cluster_info(self, *, include_absent: bool = False) -> ClusterInfo:
        """All groups as they registered, with no id made up; absent groups, if they are asked for, without address."""
        names = sorted({*self._groups, *(self._absent.by_name if include_absent else ())})
        groups = {name: self._broker_data(name) for name in names}
        clusters: dict[str, list[str]] = {}
        for name, group in groups.items():
            clusters.setdefault(group.cluster, []).append(name)
        return ClusterInfo(groups, clusters)

    def members(self, broker_name: str) -> dict[int, str]:
        """A group's addresses by broker id as they registered, empty if it is unknown."""
        group = self._groups.get(broker_name)
        return {} if group is None else group.addresses

    # Steps of the above

    def _refusal(self, group: Group | None, header: RegisterBrokerHeader, term: int, topic_count: int) -> str:
        """Why a registration must not take effect, empty if it may."""
        if group is None:
            known: Mapping[int, str] = {}
        else:
            known = group.addresses
            touches_leader = header.broker_id == MASTER_ID or known.get(MASTER_ID) == header.broker_addr
            if touches_leader and term < group.leader_term:
                return f"term {term} is older than {group.leader_term}, in which the leader of the group registered"
            holder = group.nodes.get(header.broker_id)
            if holder is not None and holder.address != header.broker_addr:
                since = self._nodes[holder].data_version.state_version
                if since > term:
                    return f"id {header.broker_id} belongs to {holder.address} since term {since}"
        if topic_count == 1 and header.broker_id not in known and header.broker_addr not in known.values():
            return f"{header.broker_addr} sent a single topic before its first full registration"
        return ""

    def _exceeded(self, group: Group | None, header: RegisterBrokerHeader, configs: Mapping[str, TopicConfig]) -> str:
        """The limit that a registration would go beyond, empty if there is none. Who is there already stays."""
        name = header.broker_name
        is_new = NodeKey(header.cluster_name, header.broker_addr) not in self._nodes
        takes_place = group is not None and header.broker_id in group.nodes
        if is_new and not takes_place and len(self._nodes) >= self._limits.max_nodes:
            return "max_nodes"
        gone = 0
        if self._route_count + len(configs) > self._limits.max_routes:
            complete = header.topics_complete or self.delete_missing_topics
            gone = len(set(self._topics_of_group(name)).difference(configs)) if complete else 0
        return "max_routes" if self._too_many_routes(name, configs, gone=gone) else ""

    def _too_many_routes(self, broker_name: str, configs: Mapping[str, TopicConfig], *, gone: int) -> bool:
        """Whether a group's topics would be too many together with all others, if `gone` of it are deleted."""
        if self._route_count + len(configs) <= self._limits.max_routes:
            return False
        more = sum(broker_name not in self._topics.get(topic, {}) for topic in configs)
        return more > 0 and self._route_count + more - gone > self._limits.max_routes

    def _set_node(self, group: Group, key: NodeKey, header: RegisterBrokerHeader) -> None:
        """Let the id point to the node, and no other id.

        A former holder of the id is no longer a node, nor is what the same address registered as before: under another
        id, or, after a change of its configuration, in another cluster.
        """
        changed = group.nodes.get(header.broker_id) != key
        for broker_id, former in list(group.nodes.items()):
            if broker_id == header.broker_id or former.address == key.address:
                del group.nodes[broker_id]
                changed |= broker_id != header.broker_id
                self._nodes.pop(former, None)
        group.nodes[header.broker_id] = key
        acting = bool(header.enable_acting_master)
        if changed or group.enable_acting_master != acting:
            group.enable_acting_master = acting
            group.version = self._next_version()

    def _set_topics(
        self, group: Group, broker_name: str, configs: Mapping[str, TopicConfig], *, complete: bool
    ) -> None:
        former = self._absent.remove(broker_name)
        for topic in former.queues if former is not None else ():
            self._mark_changed(topic)
        for topic, config in configs.items():
            self._set_topic(group, topic, queue_data(broker_name, config), aliased=has_aliases(config))
        if complete:
            for topic in self._topics_of_group(broker_name):
                if topic not in configs:
                    self._remove_queues(topic, broker_name)

    def _set_topic(self, group: Group, topic: str, queue: QueueData, *, aliased: bool) -> None:
        self._set_queues(topic, queue)
        if aliased != (topic in group.aliased):
            group.aliased.symmetric_difference_update((topic,))
            self._topic_versions[topic] = self._next_version()

    def _set_queues(self, topic: str, queue: QueueData) -> None:
        queues = self._topics.setdefault(topic, {})
        self._route_count += queue.broker_name not in queues
        if queues.get(queue.broker_name) != queue:
            queues[queue.broker_name] = queue
            self._topic_versions[topic] = self._next_version()

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics[topic]
        del queues[broker_name]
        self._route_count -= 1
        if (group := self._groups.get(broker_name)) is not None:
            group.aliased.discard(topic)
        if not queues:
            del self._topics[topic]
            del self._topic_versions[topic]
            for standard in (False, True):
                self._encoded.pop((topic, standard), None)
        self._mark_changed(topic)

    def _remove_nodes(self, keys: Iterable[NodeKey]) -> list[NodeKey]:
        doomed = list(keys)
        for key in doomed:
            self._remove_node(key, self._nodes[key])
        return doomed

    def _remove_node(self, key: NodeKey, node: Node) -> None:
        del self._nodes[key]
        group = self._groups.get(node.broker_name)
        if group is None or group.nodes.get(node.broker_id) != key:
            return
        cluster = group.cluster
        del group.nodes[node.broker_id]
        group.version = self._next_version()
        if not group.nodes:
            self._let_go(node.broker_name, cluster)

    def _let_go(self, name: str, cluster: str) -> None:
        """The last node of a group has gone. What only followers registered is no news of its topics."""
        aliases = self._groups.pop(name).aliases
        topics = self._topics_of_group(name)
        if topics:
            self._absent.add(name, KnownGroup(cluster, {topic: self._topics[topic][name] for topic in topics}, aliases))
        for topic in topics:
            self._remove_queues(topic, name)
        for doomed in self._absent.too_many(self._limits, self._groups):
            self.absent_groups_forgotten += self.forget_group(doomed)

    def _answer(self, group: Group, header: RegisterBrokerHeader) -> Registered:
        master = group.nodes.get(MASTER_ID)
        if header.broker_id == MASTER_ID or master is None:
            return Registered()
        return Registered("", master.address, self._nodes[master].ha_address)

    def _broker_data(self, broker_name: str) -> BrokerData:
        group = self._groups.get(broker_name)
        if group is None:
            return BrokerData(broker_name, self._absent.by_name[broker_name].cluster)
        return BrokerData(broker_name, group.cluster, group.addresses, group.enable_acting_master)

    def _topics_of_group(self, broker_name: str) -> list[str]:
        return [topic for topic, queues in self._topics.items() if broker_name in queues]

    def _mark_changed(self, topic: str) -> None:
        """A topic's route, with absent groups or without, is another one now."""
        version = self._next_version()
        if topic in self._topics:
            self._topic_versions[topic] = version
        else:
            self._last_removal = version

    def _next_version(self) -> int:
        self._version += 1
        return self._version
