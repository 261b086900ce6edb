"""Name server for the clients that use one: the real table of routes, filled by the nodes that it can reach.

It hears the nodes on every request, and has noticed by then which connections are lost. So an answer has the nodes' own
knowledge at that moment. Clients may act on it later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from dledger_namesrv.table import RouteTable
from dledger_remoting.header_codec import decode_ext
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import decode_registration
from dledger_remoting.route import MASTER_ID, ClusterInfo, QueueData, TopicRouteData, is_alias
from dledger_remoting.topics import PERM_WRITE
from dledger_sim.brokers.service import SimBroker, node_at
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

ALIAS_QUEUES: Final = (1, 0, PERM_WRITE)
"""Queues to write, queues to read, and permissions of a write alias in a route."""


class NameServer:
    """Name server of a simulated group, which clients always reach. It hears the nodes at most every `pause_s`."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._last_refresh_at = float("-inf")
        self._table = RouteTable()
        self._connections: dict[str, int] = {}
        """Connection over which each node was last heard, by the node's name."""
        self._last_connection = 0
        self._lives: dict[str, int] = {}

    def route(self, group: SimGroup, topic: str) -> TopicRouteData:
        """Return the route of a topic. It is empty for an unknown topic."""
        self._refresh(group)
        listed = self._table.cluster_info()
        names = {*listed.broker_addr_table, *(name for names in listed.cluster_addr_table.values() for name in names)}
        require(not any(map(is_alias, names)), "no list of a cluster has write aliases", names=names)
        route = self._table.route(topic) or TopicRouteData()
        check_aliases(route)
        return route

    def cluster(self, group: SimGroup) -> ClusterInfo:
        """Return all known broker groups."""
        self._refresh(group)
        return self._table.cluster_info()

    def version(self, group: SimGroup) -> int:
        """Return the present version of all routes."""
        self._refresh(group)
        return self._table.version

    def changed_since(self, topics: Iterable[str], version: int) -> bool:
        """Return whether one of these routes is newer than a version, as of the last hearing."""
        return self._table.changed_since(topics, version)

    def _refresh(self, group: SimGroup) -> None:
        if group.scheduler.now < self._last_refresh_at + self._pause_s:
            return
        self._last_refresh_at = group.scheduler.now
        for name, node in group.nodes.items():
            life = node.life
            if name in self._connections and (life is None or self._lives[name] != node.lives):
                self._table.drop_connection(self._connections.pop(name))
            if life is None or life.stopping or life.environment.paused or name in group.unreachable:
                continue
            registrar = cast(SimBroker, life.service).registrar
            command = registrar.registration(registrar.identity)
            header = decode_ext(RegisterBrokerHeader, command.ext)
            body = decode_registration(command.body, compressed=header.compressed)
            self._last_connection += 1
            now_ms = int(group.scheduler.now * 1000)
            answer = self._table.register(header, body, now_ms=now_ms, connection=self._last_connection)
            if not answer.refusal:
                self._connections[name], self._lives[name] = self._last_connection, node.lives


def alias_nodes(route: TopicRouteData) -> dict[str, str]:
    """Return the nodes whose write aliases a route lists, by the aliases' names."""
    return {
        broker.broker_name: node_at(broker.broker_addrs[MASTER_ID])
        for broker in route.broker_datas
        if is_alias(broker.broker_name)
    }


def check_aliases(route: TopicRouteData) -> None:
    """Raise `Violation` unless each write alias belongs to a node other than the shown leader, and is write-only."""
    aliases = alias_nodes(route)
    for broker in route.broker_datas:
        leader = broker.broker_addrs.get(MASTER_ID)
        require(
            is_alias(broker.broker_name) or leader is None or node_at(leader) not in aliases.values(),
            "a route has no write alias of the node that it shows as the leader",
            route=route,
        )
    for queues in route.queue_datas:
        require(
            queues.broker_name not in aliases or _get_figures(queues) == ALIAS_QUEUES,
            "a write alias has one queue, which nobody can read",
            queues=queues,
        )


def _get_figures(queues: QueueData) -> tuple[int, int, int]:
    return queues.write_queue_nums, queues.read_queue_nums, queues.perm
