"""Routes: the queues of a topic and the broker groups that hold them, kept up to date.

Three sources, the quickest of which is enough: a *route watch* (a long poll at the name server that ends when a route
changes), a poll every 30 s, and a look-up when a broker's answer says that the route is out of date. A name server
without route watch answers code 3; then the poll remains. A route once known is kept when a name server does not know
the topic, as one of RocketMQ's that has just restarted, and when none of the topic's broker groups has a node.

Our name servers also tell of *absent* broker groups, of which no node is registered now. Their queues are not read or
sent to at random, but they count where leaving them out would be wrong: for keys, and for whoever wants all messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError, error_from_response
from dledger_remoting.headers import IncludeAbsentHeader, RouteHeader, RouteWatchHeader, encode_ext
from dledger_remoting.route import TopicRouteData, decode_route, without_aliases
from dledger_remoting.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES, is_inherited, is_readable, is_writable

from .errors import ClientClosedError, ClientError, NoNameServerError, NoRouteError, refusal
from .leaders import BrokerGroup
from .messages import MessageQueue
from .nameservers import NameServers

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 15.0
"""How long a name server may hold a route watch."""

_REWATCH_SECONDS: Final = 0.25
"""Pause before a watch that lacks a topic is replaced: a name server goes on holding the old one, and holds 64."""

_ANSWER_SECONDS: Final = 5.0
_WATCH_PAUSE_SECONDS: Final = 1.0
_SHOWN_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of a topic that can be read and written, sorted. `provisional` = the first send creates the topic.

    Those of broker groups of which no node is registered are apart.
    """

    topic: str
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]
    provisional: bool = False
    absent_readable: tuple[MessageQueue, ...] = ()
    absent_writable: tuple[MessageQueue, ...] = ()

    @property
    def all_readable(self) -> tuple[MessageQueue, ...]:
        """All queues that can be read once their broker groups are there, sorted."""
        return tuple(sorted(self.readable + self.absent_readable)) if self.absent_readable else self.readable

    @property
    def all_writable(self) -> tuple[MessageQueue, ...]:
        """All queues that can be written once their broker groups are there, sorted."""
        return tuple(sorted(self.writable + self.absent_writable)) if self.absent_writable else self.writable


RouteListener = Callable[[TopicRoute], None]


class RouteTable:
    """Routes by topic and broker groups by name. Belongs to one event loop."""

    def __init__(
        self,
        name_servers: NameServers,
        on_leader: Callable[[BrokerGroup, str | None], None],
        *,
        poll_seconds: float = 30.0,
    ) -> None:
        self.groups: dict[str, BrokerGroup] = {}
        self.listeners: list[RouteListener] = []
        self.made_later: set[str] = set()
        """Topics that did not exist when they were looked up first."""
        self._name_servers = name_servers
        self._on_leader = on_leader
        self._poll_seconds = poll_seconds
        self._routes: dict[str, TopicRoute] = {}
        self._watched: set[str] = set()
        self._lookups: dict[tuple[str, bool], asyncio.Task[TopicRoute]] = {}
        self._topic_added = asyncio.Event()

    async def close(self) -> None:
        """Stop looking up."""
        tasks = list(self._lookups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cached(self, topic: str) -> TopicRoute | None:
        """The route as far as it is known, without asking."""
        return self._routes.get(topic)

    def group(self, name: str) -> BrokerGroup:
        """The broker group of that name; it has no addresses before a route names it."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = BrokerGroup(name, self._on_leader)
        return group

    def group_at(self, address: str) -> BrokerGroup | None:
        """The broker group that a node with this address belongs to."""
        return next((group for group in self.groups.values() if address in group.addresses), None)

    async def get(self, topic: str, deadline: float, *, auto_create: bool = False) -> TopicRoute:
        """The route of a topic, looked up if it is not known yet.

        With `auto_create`, a topic that no name server knows gets a provisional route through the brokers that create
        topics. Raises `NoRouteError` if there is none, `NoNameServerError` if no name server answers.
        """
        return self._routes.get(topic) or await self.refresh(topic, deadline, auto_create=auto_create)

    async def refresh(self, topic: str, deadline: float, *, auto_create: bool = False) -> TopicRoute:
        """Look the route up now; callers that want the same topic at the same time share one look-up.

        One that no name server has answered is repeated until `deadline`. Raises `ClientClosedError` once the client is
        closed.
        """
        last: NoNameServerError | None = None
        while True:
            task = self._start_look_up(topic, auto_create=auto_create)
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.wait((task,))
                if task.cancelled():
                    raise ClientClosedError("the client is closed")
                return task.result()
            except TimeoutError:
                raise last or NoRouteError(topic, "no name server answered before the call's deadline") from None
            except NoNameServerError as error:
                last = error

    async def wait_until_shown(self, topic: str, wanted: Mapping[str, tuple[int, int]], deadline: float) -> None:
        """Wait until the name server shows so many queues to read and to write in each of these broker groups.

        Brokers register a topic right after they store it. One that is shown otherwise at the deadline is left so;
        raises the error of a route that cannot be had then.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                route = await self.refresh(topic, deadline)
            except ClientError:
                if loop.time() >= deadline:
                    raise
            else:
                reads = Counter(queue.broker_group for queue in route.readable)
                writes = Counter(queue.broker_group for queue in route.writable)
                if {name: (reads[name], writes[name]) for name in wanted} == wanted or loop.time() >= deadline:
                    return
            await asyncio.sleep(_SHOWN_PAUSE_SECONDS)

    def refresh_soon(self, topic: str) -> None:
        """Look the route up in the background."""
        self._start_look_up(topic, auto_create=False)

    def forget(self, topic: str) -> None:
        """No longer keep the route of a topic up to date."""
        self._routes.pop(topic, None)
        self._watched.discard(topic)

    def _start_look_up(self, topic: str, *, auto_create: bool) -> asyncio.Task[TopicRoute]:
        if topic not in self._watched:
            self._watched.add(topic)
            self._topic_added.set()
        key = (topic, auto_create)
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.create_task(self._look_up(topic, auto_create=auto_create), name=f"route of {topic}")
            self._lookups[key] = task
            task.add_done_callback(lambda done: self._looked_up(key, done))
        return task

    async def _look_up(self, topic: str, *, auto_create: bool) -> TopicRoute:
        data = await self._ask(topic)
        provisional = False
        known = self._routes.get(topic)
        if known is not None and (data is None or not any(broker.broker_addrs for broker in data.broker_datas)):
            return known
        if data is None and auto_create:
            provisional = True
            data = await self._ask(AUTO_CREATE_TOPIC)
        if data is None:
            self.made_later.add(topic)
            raise NoRouteError(topic, "no registered broker has it")
        return self._adopt(topic, data, provisional=provisional)

    async def _ask(self, topic: str) -> TopicRouteData | None:
        header = RouteHeader(topic=topic, accept_standard_json_only=True)
        ext = encode_ext(header) | encode_ext(IncludeAbsentHeader(include_absent=True))
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext)
        deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS
        response = await self._name_servers.call(command, deadline)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refusal(error_from_response(response.code, response.remark, response.ext))
        try:
            return without_aliases(decode_route(response.body))
        except RemotingError as error:
            raise NoRouteError(topic, f"the name server's answer cannot be read: {error}") from error

    def _adopt(self, topic: str, data: TopicRouteData, *, provisional: bool) -> TopicRoute:
        addresses = {broker.broker_name: broker.broker_addrs for broker in data.broker_datas}
        for broker in data.broker_datas:
            self.group(broker.broker_name).update_from_route(broker.cluster, broker.broker_addrs)
        readable: list[MessageQueue] = []
        writable: list[MessageQueue] = []
        for queues in data.queue_datas:
            name = queues.broker_name
            if name not in addresses or (provisional and not is_inherited(queues.perm)):
                continue
            writes = min(queues.write_queue_nums, DEFAULT_TOPIC_QUEUES) if provisional else queues.write_queue_nums
            if is_readable(queues.perm) and not provisional:
                readable += (MessageQueue(topic, name, queue_id) for queue_id in range(queues.read_queue_nums))
            if is_writable(queues.perm):
                writable += (MessageQueue(topic, name, queue_id) for queue_id in range(writes))

        def sort(queues: list[MessageQueue], *, absent: bool) -> tuple[MessageQueue, ...]:
            return tuple(sorted(queue for queue in queues if absent is not bool(addresses[queue.broker_group])))

        route = TopicRoute(
            topic,
            sort(readable, absent=False),
            sort(writable, absent=False),
            provisional,
            sort(readable, absent=True),
            sort(writable, absent=True),
        )
        if route != self._routes.get(topic):
            self._routes[topic] = route
            for listener in self.listeners:
                listener(route)
        return route

    def _looked_up(self, key: tuple[str, bool], task: asyncio.Task[TopicRoute]) -> None:
        self._lookups.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.DEBUG if isinstance(error, ClientError) else logging.ERROR
            logger.log(level, "no route for %s: %s", key[0], error)

    def _refresh_all(self) -> None:
        for topic in sorted(self._watched):
            self.refresh_soon(topic)

    async def poll(self) -> None:
        """Look all routes up every `poll_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            self._refresh_all()

    async def watch(self) -> None:
        """Hold one watch for all topics, until cancelled; begin it anew when a topic is added, so that it covers that
        one too.
        """
        version = 0
        server = ""
        while True:
            self._topic_added.clear()
            if not self._watched:
                await self._topic_added.wait()
                continue
            if server != self._name_servers.current:
                server, version = self._name_servers.current, 0
            watch = asyncio.create_task(self._watch_once(version))
            added = asyncio.create_task(self._topic_added.wait())
            try:
                await asyncio.wait((watch, added), return_when=asyncio.FIRST_COMPLETED)
                answer = watch.result() if watch.done() else None
            except ClientError as error:
                logger.debug("route watch at %s failed: %s", server, error)
                await asyncio.sleep(_WATCH_PAUSE_SECONDS)
                continue
            finally:
                watch.cancel()
                added.cancel()
            if answer is None:
                await asyncio.sleep(_REWATCH_SECONDS)
            elif answer < 0:
                await asyncio.sleep(self._poll_seconds)
            elif answer != version:
                version = answer
                self._refresh_all()

    async def _watch_once(self, version: int) -> int:
        """The route version after a change or when the time is up; -1 if the server has no route watch."""
        header = RouteWatchHeader(
            topics=",".join(sorted(self._watched)), version=version, timeout_millis=int(WATCH_SECONDS * 1000)
        )
        command = RemotingCommand(RequestCode.DLEDGER_ROUTE_WATCH, ext=encode_ext(header))
        limit = WATCH_SECONDS + _ANSWER_SECONDS
        deadline = asyncio.get_running_loop().time() + limit
        response = await self._name_servers.call(command, deadline, attempt_seconds=limit)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return -1
        if response.code != ResponseCode.SUCCESS:
            raise refusal(error_from_response(response.code, response.remark, response.ext))
        text = response.ext.get("version", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else version


def queue_of_key(route: TopicRoute, ordering_key: str) -> MessageQueue:
    """The queue of an ordering key: the same in every process, as long as the topic's queues stay the same."""
    queues = route.all_writable
    return queues[crc32(ordering_key.encode()) % len(queues)]
