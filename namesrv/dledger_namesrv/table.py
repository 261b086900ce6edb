"""The route registry: registrations in, routes out. Pure: time is an argument, connections are opaque numbers.

The algorithm is RocketMQ's `RouteInfoManager`, with the Raft term (`DataVersion.state_version`) as a fence. A request
of an older term neither displaces nor removes a leader (broker id 0) that registered in a newer one.

Unlike RocketMQ's, the registry remembers a group whose last node has gone. That group is *absent*, and is shown to
clients that ask for absent groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from dledger_remoting.headers import BrokerNodeHeader, RegisterBrokerHeader
from dledger_remoting.registration import (
    SLICE_TOPICS,
    DataVersion,
    RegisterBrokerBody,
    Steps,
    TopicChangesBody,
    run_steps,
)
from dledger_remoting.route import MASTER_ID, ClusterInfo, QueueData, TopicRouteData
from dledger_remoting.topics import PERM_READ_WRITE, PERM_WRITE, TopicConfig

from .absent import AbsentGroups
from .aliases import aliases_after, has_aliases
from .owners import GroupNames, Owner
from .records import (
    Group,
    KnownGroup,
    Node,
    NodeKey,
    Registered,
    TableLimits,
    goes_beyond,
    is_news,
    is_topic_source,
    queue_data,
    refusal_of,
)
from .routes import Routes
from .topics import Topics

DEFAULT_NODE_TIMEOUT_MS: Final = 120_000


class RouteTable:
    """All broker groups and topics that one name server knows. `absent` are the groups that it knew before a restart.

    `version` grows with every change that a route can show. It starts at `first_version`. The start time in ns is a
    good choice. After a restart the version is then higher than before, even if there were many changes.
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
        """Number of absent groups that were forgotten because of a limit."""
        self._limits = limits or TableLimits()
        self.delete_missing_topics = delete_missing_topics
        self._topics = Topics(first_version)
        self._groups: dict[str, Group] = {}
        self._absent = AbsentGroups(absent)
        self._names = GroupNames(self._absent.by_name)
        self._now_ms = 0
        """Time in ms of the last registration or call of `expire`."""
        self._nodes: dict[NodeKey, Node] = {}
        self._changed_groups: set[str] = set()
        """Groups that have changed since the last call of `take_changes`."""
        self.routes = Routes(self._topics, self._groups, self._absent, self._names)

    @property
    def version(self) -> int:
        """Version of the table, which grows with every change of any route."""
        return self._topics.version

    def topics(self, *, include_absent: bool = False) -> list[str]:
        """Return the sorted names of all topics that have a route.

        With `include_absent`, topics of absent groups are included.
        """
        return run_steps(self.routes.topics(include_absent=include_absent))

    @property
    def node_count(self) -> int:
        """Number of live nodes."""
        return len(self._nodes)

    @property
    def group_count(self) -> int:
        """Number of broker groups with a live node."""
        return len(self._groups)

    @property
    def topic_count(self) -> int:
        """Number of topics with a route."""
        return len(self._topics)

    @property
    def route_count(self) -> int:
        """Sum of the numbers of topics of all broker groups that have a live node."""
        return self._topics.route_count

    @property
    def is_small(self) -> bool:
        """True if all topics, including those of absent groups, fit into one slice."""
        return self.route_count + sum(len(group.queues) for group in self._absent.by_name.values()) <= SLICE_TOPICS

    @property
    def absent_group_count(self) -> int:
        """Number of broker groups that are known and have no live node."""
        return len(self._absent.by_name.keys() - self._groups.keys())

    def known_groups(self) -> dict[str, KnownGroup]:
        """Return the topics that each group holds, absent groups included. Groups without a topic are left out."""
        known = {name: self.known_group(name) for name in self.known_names()}
        return {name: group for name, group in known.items() if group is not None}

    def known_names(self) -> list[str]:
        """Return the names of all groups, live and absent, even of groups that hold no topic."""
        return [*self._absent.by_name, *sorted(self._groups.keys() - self._absent.by_name.keys())]

    def known_group(self, name: str) -> KnownGroup | None:
        """Return the topics that a group holds, None if it holds none.

        While an absent group comes back, its former topics are included until all its topics are registered.
        """
        group, absent = self._groups.get(name), self._absent.by_name.get(name)
        group_queues = self._topics.of_group(name)
        if group is None or not group_queues:
            return absent
        queues = dict(group_queues) if absent is None else {**absent.queues, **group_queues}
        return KnownGroup(group.cluster, queues, group.aliases, self._names.identity(name))

    def tidy(self) -> bool:
        """Do one slice of the work that a lost group with many topics leaves. Return whether there is more."""
        return self._topics.tidy()

    # Registration

    def register(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, now_ms: int, connection: int
    ) -> Registered:
        """Take a node's registration, which also counts as its heartbeat.

        `connection` is the number of the connection over which the registration came.
        """
        return run_steps(self.register_steps(header, body, now_ms=now_ms, connection=connection))

    def register_steps(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, now_ms: int, connection: int
    ) -> Steps[Registered]:
        """Take a registration as `register` does, with a pause after each slice of the topics.

        The caller must take no other registration of the group until the end. `change_topics` refuses changes
        meanwhile, because the group has no version of its topics.
        """
        wrapper = body.topic_config_serialize_wrapper
        term = wrapper.data_version.state_version
        group = self._groups.get(header.broker_name)
        self._now_ms = now_ms
        displaced: list[NodeKey] = []
        if group is not None and self._names.is_rescued(header):
            displaced, group = list(group.nodes.values()), None
        addresses = () if group is None else group.addresses.values()
        refusal = "" if displaced else self._names.refusal(header, addresses, now_ms)
        refusal = refusal or refusal_of(group, header, term, len(wrapper.topic_config_table), self._term_of)
        if refusal:
            return Registered(refusal)
        limit = self._find_exceeded_limit(group, header, wrapper.topic_config_table, len(displaced))
        if limit:
            return Registered(f"there would be more than {limit} = {getattr(self._limits, limit)}", limit=limit)
        for displaced_key in displaced:  # not before the checks: a node from before the rescue would take a free name
            self._remove_node(displaced_key, self._nodes[displaced_key], said_goodbye=True)
        if group is None:
            former_group = self._find_former(header)
            aliases = {} if former_group is None else former_group.aliases
            group = self._groups[header.broker_name] = Group({}, self._topics.next_version(), aliases=aliases)
            self._changed_groups.add(header.broker_name)
        key = NodeKey(header.cluster_name, header.broker_addr)
        former = self._nodes.get(key)
        if former is not None and former.broker_name != header.broker_name:
            self._remove_node(key, former, said_goodbye=True)
        self._names.register(header)
        self._set_node(group, key, header)
        aliases = aliases_after(group, header)
        if aliases != group.aliases:
            group.aliases, group.version = aliases, self._topics.next_version()
            self._changed_groups.add(header.broker_name)
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
            group.topics_version, group.edited = None, False
            complete = header.topics_complete or self.delete_missing_topics
            yield from self._set_topics(group, header.broker_name, wrapper.topic_config_table, complete=complete)
            if self._groups.get(header.broker_name) is not group:
                return Registered(f"all nodes of {header.broker_name} went while its topics were taken")
            group.topics_version = wrapper.data_version
        return self._make_answer(group, header)

    def change_topics(self, sender: BrokerNodeHeader, changes: TopicChangesBody, *, now_ms: int) -> bool:
        """Take changes of a node's topics, at a cost in proportion to the changes. Counts as the node's heartbeat.

        Returns False, and changes nothing, unless three things hold. The node is registered under the same id. Its
        registered topics have the version with which the changes begin. The versions before and after the changes are
        of one term. Returns False also if an operator has changed the group's topics here, or if there would be too
        many topics.

        After False the node must register as a whole. That registration is checked against the terms and the limits.
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
        group_queues = self._topics.of_group(name)
        deleted_count = len(group_queues.keys() & set(changes.deleted))
        named = {config.topic_name for config in changes.topic_config_table.values()}
        if source and goes_beyond(
            self._limits.max_routes, self.route_count, group_queues, named, deleted=deleted_count
        ):
            return False
        node.data_version, node.last_seen_ms = changes.data_version, now_ms
        if source:
            group.topics_version = changes.data_version
            for config in changes.topic_config_table.values():
                topic, queue = config.topic_name, queue_data(sender.broker_name, config)
                self._set_topic(group, topic, queue, aliased=has_aliases(config))
            for topic in changes.deleted:
                if topic in self._topics.of_group(name):
                    self._remove_queues(topic, name)
        return True

    def unregister(self, broker_name: str, cluster: str, address: str, broker_id: int, term: int | None = None) -> bool:
        """Remove a node that unregisters. Return whether it was registered under this id and is removed.

        If `term` is given and older than that of the node's last registration, the node stays.
        """
        key = NodeKey(cluster, address)
        node = self._nodes.get(key)
        if node is None or node.broker_name != broker_name or node.broker_id != broker_id:
            return False
        if term is not None and term < node.data_version.state_version:
            return False
        self._remove_node(key, node, said_goodbye=True)
        return True

    def drop_connection(self, connection: int) -> list[NodeKey]:
        """Remove the nodes whose last registration came over a connection that is now gone."""
        return self._remove_nodes(key for key, node in self._nodes.items() if node.connection == connection)

    def expire(self, now_ms: int) -> list[NodeKey]:
        """Remove the nodes that have been silent for longer than the timeout that they registered."""
        self._now_ms = now_ms
        self._names.expire(now_ms)
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
        """Return the data version of a node's last registration."""
        node = self._nodes.get(NodeKey(cluster, address))
        return None if node is None else node.data_version

    # Topics

    def forget_group(self, name: str) -> bool:
        """Forget an absent group that will not come back. Return False if no absent group has this name."""
        if name in self._groups or (group := self._absent.remove(name)) is None:
            return False
        self._names.forget(name)
        self._topics.mark_all(group.queues)
        return True

    def give_to_rival(self, name: str) -> bool:
        """Remove the nodes of a live group and give its name to its last rival. Return False if it has no rival."""
        group = self._groups.get(name)
        if group is None or not self._names.has_rival(name):
            return False
        self._remove_nodes([*group.nodes.values()])
        self.forget_group(name)
        self._names.give_to_rival(name, self._now_ms)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forget a topic's queues, or only those in `cluster` if it is given. Return whether there were any."""
        queues = self._topics.queues(topic)
        doomed = [name for name in queues if cluster is None or self._groups[name].cluster == cluster]
        for name in doomed:
            self._remove_queues(topic, name)
            self._groups[name].edited = True
        dropped = self._absent.drop_topic(topic, cluster)
        if dropped:
            self._topics.mark(topic)
        return bool(doomed) or dropped

    def set_write_permission(self, broker_name: str, *, writable: bool) -> int:
        """Remove the write bit from all topics of a broker group, or set their permission to 6. Returns the number of
        topics.

        This holds until the group registers as a whole with another data version. Its changes by 20005 are refused
        meanwhile, so that it does.
        """
        return run_steps(self.write_permission_steps(broker_name, writable=writable))

    def write_permission_steps(self, broker_name: str, *, writable: bool) -> Steps[int]:
        """Do the same as `set_write_permission`, with a pause after each slice of the topics."""
        group_topics = list(self._topics.of_group(broker_name))
        for number, topic in enumerate(group_topics):
            if number % SLICE_TOPICS == SLICE_TOPICS - 1:
                yield
            queue = self._topics.of_group(broker_name).get(topic)
            if queue is not None:
                self._groups[broker_name].edited = True
                perm = PERM_READ_WRITE if writable else queue.perm & ~PERM_WRITE
                self._topics.put(topic, msgspec.structs.replace(queue, perm=perm))
        return len(group_topics)

    # Reading

    def route(self, topic: str, *, include_absent: bool = False) -> TopicRouteData | None:
        """Return the route of a topic, None if it has none."""
        return self.routes.of(topic, include_absent=include_absent)

    def encoded_route(self, topic: str, *, standard: bool, include_absent: bool = False) -> bytes | None:
        """Return a topic's route as JSON, in fastjson's dialect unless `standard`. None if it has no route."""
        return self.routes.encoded(topic, standard=standard, include_absent=include_absent)

    def route_version(self, topic: str) -> int:
        """Return the version at which the route of a topic changed last."""
        return self.routes.version(topic)

    def cluster_info(self, *, include_absent: bool = False) -> ClusterInfo:
        """Return the broker groups of each cluster, with their addresses."""
        return self.routes.cluster_info(include_absent=include_absent)

    def set_ordered(self, topics: Iterable[str]) -> None:
        """Set the topics that an operator has declared as ordered."""
        self.routes.set_ordered(topics)

    def take_changes(self) -> tuple[set[str], set[str]]:
        """Return what has changed since the last call: single topics, and groups with all their topics."""
        topics = self._topics.take_changed()
        groups, self._changed_groups = self._changed_groups, set()
        return topics, groups

    def is_of_groups(self, topic: str, groups: Collection[str]) -> bool:
        """Return whether one of these groups has queues of a topic, or had some when it became absent."""
        return any(name in groups for name in (*self._topics.groups(topic), *self._absent.with_topic(topic)))

    def changed_since(self, topics: Iterable[str], version: int) -> bool:
        """Return whether one of the topics' routes changed after `version`, or if `version` is not from this table."""
        return version > self.version or any(self.route_version(topic) > version for topic in topics)

    def members(self, broker_name: str) -> dict[int, str]:
        """Return the registered addresses of a group by broker id, empty if the group has no live node."""
        group = self._groups.get(broker_name)
        return {} if group is None else group.addresses

    # Steps of the above

    def _find_former(self, header: RegisterBrokerHeader) -> KnownGroup | None:
        """Return the record of an absent group that comes back; None if it has no record.

        If the record is of another group with the same name, it is removed.
        """
        name = header.broker_name
        known = self._absent.by_name.get(name)
        if known is None or Owner(known.cluster, known.identity).is_of(Owner.of(header)):
            return known
        self.forget_group(name)
        return None

    def _term_of(self, key: NodeKey) -> int:
        return self._nodes[key].data_version.state_version

    def _find_exceeded_limit(
        self, group: Group | None, header: RegisterBrokerHeader, configs: Mapping[str, TopicConfig], displaced: int
    ) -> str:
        """Return the limit that a registration would exceed, empty if there is none.

        `max_nodes` never refuses a node that is registered or takes over the id of one. `displaced` is the number of
        nodes that are removed for it.
        """
        is_new = NodeKey(header.cluster_name, header.broker_addr) not in self._nodes
        takes_place = group is not None and header.broker_id in group.nodes
        if is_new and not takes_place and len(self._nodes) - displaced >= self._limits.max_nodes:
            return "max_nodes"
        group_queues, max_routes = self._topics.of_group(header.broker_name), self._limits.max_routes
        complete = header.topics_complete or self.delete_missing_topics
        too_many = goes_beyond(max_routes, self.route_count, group_queues, configs, deleted=None if complete else 0)
        return "max_routes" if too_many else ""

    def _set_node(self, group: Group, key: NodeKey, header: RegisterBrokerHeader) -> None:
        """Make the node the only holder of its id, and the id the only one of the node.

        A former holder of the id is removed. So is a former registration of the same address under another id, or in
        another cluster after a change of the node's configuration.
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
            group.version = self._topics.next_version()
            self._changed_groups.add(header.broker_name)

    def _set_topics(
        self, group: Group, broker_name: str, configs: Mapping[str, TopicConfig], *, complete: bool
    ) -> Steps[None]:
        for number, (topic, config) in enumerate(configs.items()):
            if number % SLICE_TOPICS == SLICE_TOPICS - 1:
                yield
                if self._groups.get(broker_name) is not group:
                    return  # the group's last node has gone meanwhile
            self._set_topic(group, topic, queue_data(broker_name, config), aliased=has_aliases(config))
        # The record of the absent group is kept until now, because the group may go again between two slices.
        former = self._absent.remove(broker_name)
        for number, topic in enumerate(former.queues if former is not None else ()):
            if number % SLICE_TOPICS == SLICE_TOPICS - 1:
                yield
            self._topics.mark(topic)
        if complete:
            for number, topic in enumerate(list(self._topics.of_group(broker_name))):
                if number % SLICE_TOPICS == SLICE_TOPICS - 1:
                    yield
                if topic not in configs and topic in self._topics.of_group(broker_name):
                    self._remove_queues(topic, broker_name)

    def _set_topic(self, group: Group, topic: str, queue: QueueData, *, aliased: bool) -> None:
        self._topics.put(topic, queue)
        if aliased != (topic in group.aliased):
            group.aliased.symmetric_difference_update((topic,))
            self._topics.mark(topic)

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        if (group := self._groups.get(broker_name)) is not None:
            group.aliased.discard(topic)
        self._topics.remove(topic, broker_name)

    def _remove_nodes(self, keys: Iterable[NodeKey]) -> list[NodeKey]:
        doomed = list(keys)
        for key in doomed:
            self._remove_node(key, self._nodes[key])
        return doomed

    def _remove_node(self, key: NodeKey, node: Node, *, said_goodbye: bool = False) -> None:
        del self._nodes[key]
        group = self._groups.get(node.broker_name)
        if group is None or group.nodes.get(node.broker_id) != key:
            return
        cluster, addresses = group.cluster, group.addresses.values()
        del group.nodes[node.broker_id]
        group.version = self._topics.next_version()
        self._changed_groups.add(node.broker_name)
        if not group.nodes:
            identity = self._names.identity(node.broker_name)
            self._names.let_go(node.broker_name, addresses, self._now_ms, said_goodbye=said_goodbye)
            self._make_absent(node.broker_name, cluster, identity)

    def _make_absent(self, name: str, cluster: str, identity: str) -> None:
        """Make a group absent whose last node has gone.

        If only followers have registered since the group appeared, it has no topics, and a former record of it stays.
        """
        aliases = self._groups.pop(name).aliases
        queues = self._topics.remove_group(name)
        if queues:
            former = self._absent.by_name.get(name)  # it has gone again before all its topics were registered
            queues = queues if former is None else {**former.queues, **queues}
            self._absent.add(name, KnownGroup(cluster, queues, aliases, identity))
        for doomed in self._absent.too_many(self._limits, self._groups):
            self.absent_groups_forgotten += self.forget_group(doomed)

    def _make_answer(self, group: Group, header: RegisterBrokerHeader) -> Registered:
        master = group.nodes.get(MASTER_ID)
        if header.broker_id == MASTER_ID or master is None:
            return Registered()
        return Registered("", master.address, self._nodes[master].ha_address)
