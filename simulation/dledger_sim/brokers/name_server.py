"""A name server for the clients that ask one: the real table of routes, told by the nodes that it can hear.

It hears them whenever somebody asks, and has noticed by then which connections are gone: an answer is as good as the
nodes' own knowledge at that moment. What clients make of it later is theirs.
"""

from __future__ import annotations

from typing import Final, cast

from dledger_namesrv.table import RouteTable
from dledger_remoting.header_codec import decode_ext
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import decode_registration
from dledger_remoting.route import MASTER_ID, QueueData, TopicRouteData, is_alias
from dledger_remoting.topics import PERM_WRITE
from dledger_sim.brokers.service import SimBroker, node_at
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

ALIAS_QUEUES: Final = (1, 0, PERM_WRITE)
"""What a route says of a write alias: queues to write, queues to read, permissions."""


class NameServer:
    """One name server of a simulated group, which clients always reach."""

    def __init__(self) -> None:
        self._table = RouteTable()
        self._connections: dict[str, int] = {}
        """Over which a node was heard last, by its name."""
        self._next = 0
        self._lives: dict[str, int] = {}

    def route(self, group: SimGroup, topic: str) -> TopicRouteData:
        """Where a topic lives; of one that nobody has told of, nowhere."""
        self._hear(group)
        listed = self._table.cluster_info()
        names = {*listed.broker_addr_table, *(name for names in listed.cluster_addr_table.values() for name in names)}
        require(not any(map(is_alias, names)), "no list of a cluster has write aliases", names=names)
        route = self._table.route(topic) or TopicRouteData()
        check_aliases(route)
        return route

    def _hear(self, group: SimGroup) -> None:
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
            self._next += 1
            now_ms = int(group.scheduler.now * 1000)
            answer = self._table.register(header, body, now_ms=now_ms, connection=self._next)
            if not answer.refusal:
                self._connections[name], self._lives[name] = self._next, node.lives


def alias_nodes(route: TopicRouteData) -> dict[str, str]:
    """The nodes whose write aliases a route lists, by the aliases' names."""
    return {
        broker.broker_name: node_at(broker.broker_addrs[MASTER_ID])
        for broker in route.broker_datas
        if is_alias(broker.broker_name)
    }


def check_aliases(route: TopicRouteData) -> None:
    """Raise `Violation` unless each write alias is of another node than the one shown as the leader, and takes only."""
    aliases = alias_nodes(route)
    for broker in route.broker_datas:
        leader = broker.broker_addrs.get(MASTER_ID)
        require(
            is_alias(broker.broker_name) or leader is None or node_at(leader) not in aliases.values(),
            "the node that a route shows as the leader has no write alias in it",
            route=route,
        )
    for queues in route.queue_datas:
        require(
            queues.broker_name not in aliases or _figures(queues) == ALIAS_QUEUES,
            "a write alias has one queue, and nothing to read",
            queues=queues,
        )


def _figures(queues: QueueData) -> tuple[int, int, int]:
    return queues.write_queue_nums, queues.read_queue_nums, queues.perm
