"""Lookups of routes: ask name servers for a topic's queues in all broker groups (105).

Topics are looked up one at a time. Name servers are asked one after another until one answers. The name server that
answered last is asked first. A lookup ends after `FIND_S` at the latest. If no name server has answered, its callers
get the last known route, however old, or None.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from dledger.environment import Cancellable, Environment
from dledger_base.tls import TlsContext
from dledger_broker.addresses import Address
from dledger_broker.clients.topic_routes import Found
from dledger_broker.frontend.name_server import NameServerConnection
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError, error_from_response
from dledger_remoting.headers import encode_ext
from dledger_remoting.headers_namesrv import RouteHeader
from dledger_remoting.route import TopicRouteData, decode_route, without_aliases

FIND_S: Final = 0.7
"""Time limit in seconds of a lookup.

Java's client waits one second for its first assignment of queues. If it gets no queues, it never asks again.
"""
ANSWER_S: Final = 0.3
"""Time limit in seconds for a name server's answer. Then the next name server is asked."""
REUSE_S: Final = 5.0
"""Maximum age in seconds of a route that is used again. RocketMQ's brokers fetch routes every 30 s."""
MAX_KEPT: Final = 10_000
"""Maximum number of routes that are kept. Beyond it the route that a name server gave longest ago is dropped."""


class _Kept(NamedTuple):
    at: float
    route: TopicRouteData


class _Waiting(NamedTuple):
    founds: list[Found]
    timer: Cancellable


class RouteLookups:
    """Lookups at some name servers. Without any name server every route is empty."""

    def __init__(self, env: Environment, name_servers: Iterable[Address], tls: TlsContext | None = None) -> None:
        self._env = env
        self._tls = tls
        self._name_servers = deque(name_servers)
        self._connections: dict[Address, NameServerConnection] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None

    def find(self, topic: str, found: Found) -> None:
        """Call `found` once with the route of a topic, at once or later on the event loop. None if it is unknown."""
        if not self._name_servers:
            found(TopicRouteData())
            return
        kept = self._kept.get(topic)
        if kept is not None and self._env.now() - kept.at < REUSE_S:
            found(kept.route)
            return
        if topic not in self._waiting:
            timer = self._env.call_later(FIND_S, partial(self._settle, topic))
            self._waiting[topic] = _Waiting([], timer)
        self._waiting[topic].founds.append(found)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Stop asking, and give all waiting lookups the last known routes."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._settle_all()
        for address in list(self._connections):
            self._drop(address)

    async def _work(self) -> None:
        try:
            while self._waiting:
                topic = next(iter(self._waiting))
                route = await self._ask(topic)
                if route is None:
                    break
                self._keep(topic, route)
                self._settle(topic)
        finally:
            self._task = None
            self._settle_all()

    def _keep(self, topic: str, route: TopicRouteData) -> None:
        self._kept[topic] = _Kept(self._env.now(), route)
        self._kept.move_to_end(topic)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    async def _ask(self, topic: str) -> TopicRouteData | None:
        """Return the answer of the first name server that answers, None without any answer."""
        for _ in range(len(self._name_servers)):
            address = self._name_servers[0]
            try:
                return await self._query(address, topic)
            except (OSError, TimeoutError, RemotingError):  # registration logs an unreachable name server
                self._drop(address)
                self._name_servers.rotate(-1)
        return None

    async def _query(self, address: Address, topic: str) -> TopicRouteData:
        connection = self._connections.get(address)
        if connection is None:
            lost = partial(self._drop, address)
            connection = self._connections[address] = await NameServerConnection.open(
                address, ANSWER_S, lost, tls=self._tls
            )
        header = RouteHeader(topic, accept_standard_json_only=True)
        response = await connection.call(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=encode_ext(header)))
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return TopicRouteData()
        if response.code != ResponseCode.SUCCESS:
            raise error_from_response(response.code, response.remark, response.ext)
        return without_aliases(decode_route(response.body))

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _settle_all(self) -> None:
        for topic in list(self._waiting):
            self._settle(topic)

    def _settle(self, topic: str) -> None:
        """Give all waiting lookups of a topic its last known route."""
        waiting = self._waiting.pop(topic, None)
        if waiting is None:
            return
        waiting.timer.cancel()
        kept = self._kept.get(topic)
        for found in waiting.founds:
            found(None if kept is None else kept.route)
