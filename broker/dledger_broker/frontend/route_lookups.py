"""Lookups of routes: what name servers say of the queues that a topic has in all broker groups (105).

One topic at a time is asked for, of one name server after another until one answers, the one that answered last first.
Nobody waits longer than `FIND_S`, whatever name servers do: then they get what was said last, however old.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from dledger.environment import Cancellable, Environment
from dledger.net.tls import TlsContext
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
"""Java's client waits a second for its first assignment, and never asks for another one if it has none by then."""
ANSWER_S: Final = 0.3
"""A name server that takes longer is passed over for the next one."""
REUSE_S: Final = 5.0
"""A route that is younger is not asked for again: brokers of RocketMQ do that every 30 s."""
MAX_KEPT: Final = 10_000
"""Routes that are kept; the one that was asked for longest ago goes first."""


class _Kept(NamedTuple):
    at: float
    route: TopicRouteData


class _Waiting(NamedTuple):
    founds: list[Found]
    timer: Cancellable


class RouteLookups:
    """Asks these name servers; without any there are no other groups. `stop` answers those who wait."""

    def __init__(self, env: Environment, name_servers: Iterable[Address], tls: TlsContext | None = None) -> None:
        self._env = env
        self._tls = tls
        self._name_servers = deque(name_servers)
        self._connections: dict[Address, NameServerConnection] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None

    def find(self, topic: str, found: Found) -> None:
        """See `TopicRoutes.find`."""
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
        """Ask no more."""
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
        """What the first name server says that answers; None if none does."""
        for _ in range(len(self._name_servers)):
            address = self._name_servers[0]
            try:
                return await self._ask_at(address, topic)
            except (OSError, TimeoutError, RemotingError):  # registration says so of a name server that is away
                self._drop(address)
                self._name_servers.rotate(-1)
        return None

    async def _ask_at(self, address: Address, topic: str) -> TopicRouteData:
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
        """Tell those who wait what is known of a topic."""
        waiting = self._waiting.pop(topic, None)
        if waiting is None:
            return
        waiting.timer.cancel()
        kept = self._kept.get(topic)
        for found in waiting.founds:
            found(None if kept is None else kept.route)
