"""The cluster behind the proxy: our client's connections, routes and calls, shared by all of the proxy's clients.

Settings of topics and groups are looked up when they are needed, and kept for `SETTINGS_SECONDS`. Nothing else is kept,
so any proxy can go on with what another one began.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from dledger_client import Credentials, Tls
from dledger_client.administration.cluster_calls import decode
from dledger_client.cluster.core import ClientCore, new_client_id
from dledger_client.cluster.routes import TopicRoute
from dledger_client.errors import NoRouteError, NotFoundError
from dledger_client.sending.sender import Sender
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import GroupHeader, TopicHeader, encode_ext
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

SETTINGS_SECONDS: Final = 5.0
"""Interval in seconds after which the settings of a topic or group are looked up again."""
MAX_SETTINGS: Final = 20_000
"""Maximum number of topics, and of groups, whose settings are kept."""
CALL_SECONDS: Final = 10.0
"""Default time limit of a call in seconds. A group replaces its leader in less."""
ANSWER_SECONDS: Final = 0.1
"""Time in seconds in which an answer reaches its client."""
ATTEMPT_SECONDS: Final = 3.0
PRODUCER_GROUP: Final = "DLEDGER_PROXY"
"""Producer group in whose name messages are sent. All proxies share it, so that each recognises repeated sends."""

ValueT = TypeVar("ValueT")
KeyT = TypeVar("KeyT", bound=Hashable)


class _Kept(Generic[KeyT, ValueT]):
    """Values by key, each looked up again once it is old. Callers that want the same one share a look-up."""

    def __init__(self, look_up: Callable[[KeyT, float], Awaitable[ValueT]]) -> None:
        self._look_up = look_up
        self._values: OrderedDict[KeyT, tuple[float, ValueT]] = OrderedDict()
        self._under_way: dict[KeyT, asyncio.Task[ValueT]] = {}

    async def get(self, key: KeyT, deadline: float) -> ValueT:
        """Return the value. Raises the errors of the look-up."""
        loop = asyncio.get_running_loop()
        known = self._values.get(key)
        if known is not None and loop.time() < known[0]:
            return known[1]
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = loop.create_task(self._refresh(key, deadline))
            task.add_done_callback(lambda done: self._on_done(key, done))
        return await asyncio.shield(task)

    async def _refresh(self, key: KeyT, deadline: float) -> ValueT:
        value = await self._look_up(key, deadline)
        self._values[key] = asyncio.get_running_loop().time() + SETTINGS_SECONDS, value
        self._values.move_to_end(key)
        while len(self._values) > MAX_SETTINGS:
            self._values.popitem(last=False)
        return value

    def _on_done(self, key: KeyT, task: asyncio.Task[ValueT]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # its waiters get it; without any it is nobody's


class Cluster(NamedTuple):
    """The cluster behind a proxy: its name servers, the proxy's own account, and TLS."""

    name_servers: str
    credentials: Credentials | None = None
    tls: Tls | None = None


class Backends:
    """The calls of one proxy to its cluster. Belongs to one event loop; `start` before the first call."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.core = ClientCore(
            cluster.name_servers, client_id=new_client_id(), credentials=cluster.credentials, tls=cluster.tls
        )
        self.sender = Sender(self.core, PRODUCER_GROUP, attempt_timeout=ATTEMPT_SECONDS, retry_unknown=False)
        self._topics = _Kept(self._look_up_topic)
        self._groups = _Kept(self._look_up_group)

    def start(self) -> None:
        """Begin to keep routes up to date. No name server has to run yet."""
        self.core.start()

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        await self.core.close()

    def deadline(self, limit: float | None = None) -> float:
        """Return the deadline of a call, by the event loop's clock: at most `CALL_SECONDS` from now.

        `limit` is the deadline of the request that it is for, of which `ANSWER_SECONDS` are left for the answer.
        """
        latest = self.core.loop.time() + CALL_SECONDS
        return latest if limit is None else min(limit - ANSWER_SECONDS, latest)

    async def route(self, topic: str, deadline: float) -> TopicRoute:
        """Return the route of a topic, which is kept up to date while calls need it. Raises `NoRouteError`."""
        routes = self.core.routes
        return routes.used(topic) or await routes.refresh(topic, deadline)

    async def topic(self, name: str, deadline: float) -> TopicConfig:
        """Return the settings of a topic, at most `SETTINGS_SECONDS` old. Raises `ClientError`."""
        return await self._topics.get(name, deadline)

    async def group(self, name: str, topic: str, deadline: float) -> SubscriptionGroupConfig:
        """Return the settings of a consumer group that reads a topic, the default ones if it does not exist yet.

        They are at most `SETTINGS_SECONDS` old. Raises `ClientError`.
        """
        return await self._groups.get((name, topic), deadline)

    async def ask(
        self,
        broker_group: str,
        code: int,
        ext: Mapping[str, str],
        *,
        deadline: float,
        accept: frozenset[int] = frozenset(),
        idempotent: bool = True,
        on_late: Callable[[RemotingCommand], None] | None = None,
    ) -> RemotingCommand:
        """Ask the leader of a broker group, as `ClientCore.call_leader` does."""
        group = self.core.routes.group(broker_group)
        return await self.core.call_leader(
            group, code, ext, deadline=deadline, accept=accept, idempotent=idempotent, on_late=on_late
        )

    async def know_group(self, broker_group: str, topic: str, deadline: float) -> None:
        """Learn the addresses of a broker group that a client names, from the route of its topic.

        Raises `NoRouteError` if the topic is not there.
        """
        if not self.core.routes.group(broker_group).addresses:
            await self.core.routes.refresh(topic, deadline)
        if not self.core.routes.group(broker_group).addresses:
            self.core.routes.groups.pop(broker_group, None)  # clients must not make up any number of groups
            raise NoRouteError(topic, f"there is no broker group {broker_group!r}")

    async def _look_up_topic(self, name: str, deadline: float) -> TopicConfig:
        ext = encode_ext(TopicHeader(name))
        broker_group = await self._any_group_of(name, deadline)
        answer = await self.ask(broker_group, RequestCode.GET_TOPIC_CONFIG, ext, deadline=deadline)
        return decode(TopicConfig, answer.body)

    async def _any_group_of(self, topic: str, deadline: float) -> str:
        route = await self.route(topic, deadline)
        names = {queue.broker_group for queue in (*route.readable, *route.writable)}
        if not names:
            raise NoRouteError(topic, "none of its broker groups has a node")
        return min(names)

    async def _look_up_group(self, name_and_topic: tuple[str, str], deadline: float) -> SubscriptionGroupConfig:
        name, topic = name_and_topic
        broker_group = await self._any_group_of(topic, deadline)
        ext = encode_ext(GroupHeader(name))
        try:
            answer = await self.ask(broker_group, RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG, ext, deadline=deadline)
        except NotFoundError:
            return SubscriptionGroupConfig(name)
        return decode(SubscriptionGroupConfig, answer.body)
