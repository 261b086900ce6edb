"""Routes: the queues of a topic and the broker groups that hold them, kept up to date.

There are three sources, of which the quickest is enough. A *route watch* is a long poll at the name server that ends
when a route changes. All routes are polled every 30 s. A route is looked up when a broker's answer shows that it is out
of date. A name server without route watch answers code 3; then the poll remains.

A known route is kept when a name server does not know the topic, for example a RocketMQ name server that has just
restarted. It is also kept when none of the topic's broker groups has a node.

Our name servers also report *absent* broker groups, of which no node is registered now. Their queues are not read, nor
sent to in turn. They count where leaving them out would be wrong: for keys, and for callers that want all messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError, error_from_response
from dledger_remoting.headers import IncludeAbsentHeader, RouteHeader, RouteWatchHeader, encode_ext
from dledger_remoting.route import TopicRouteData, decode_route, without_aliases
from dledger_remoting.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES, is_inherited, is_readable, is_writable

from ..errors import ClientClosedError, ClientError, DeadlineError, NoNameServerError, NoRouteError, refusal
from ..messages import MessageQueue
from .leaders import BrokerGroup
from .nameservers import NameServers

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 15.0
"""Time limit in seconds for which a name server may hold a route watch."""

_REWATCH_SECONDS: Final = 0.25
"""Pause in seconds before a watch that lacks a topic is replaced.

The name server keeps the old watch, and holds at most 64 of a connection by default.
"""

_MAX_WATCH_TOPICS: Final = 128
_MAX_WATCH_CHARS: Final = 16 << 10
"""Maximum length of the topics of one watch in characters.

This limit and the number of topics are half of what a name server accepts. More topics need several watches.
"""
_MAX_WATCHES: Final = 16
"""Maximum number of watches at once. Further topics are only polled."""

UNUSED_SECONDS: Final = 600.0
"""Time after which an unused route is no longer kept up to date, unless a subscription needs it."""

_ANSWER_SECONDS: Final = 5.0
_WATCH_PAUSE_SECONDS: Final = 1.0
_LOOK_UP_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of a topic that can be read and written, sorted. `provisional` says that the first send creates the
    topic.

    Queues of broker groups without a registered node are in separate fields.
    """

    topic: str
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]
    provisional: bool = False
    absent_readable: tuple[MessageQueue, ...] = ()
    absent_writable: tuple[MessageQueue, ...] = ()
    created: tuple[tuple[str, int], ...] = ()
    """Creation of the topic in each broker group, if the name server reports it."""

    def created_in(self, broker_group: str) -> int | None:
        """Return the creation of the topic in a broker group, None if it is not reported."""
        return next((number for name, number in self.created if name == broker_group), None)

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
        self.forgotten: list[Callable[[str], None]] = []
        """Listeners for each topic whose route is no longer kept up to date."""
        self._watched_topics: set[str] = set()
        self._kept_topics: set[str] = set()
        """Topics whose routes are kept up to date until `forget`."""
        self._last_used: dict[str, float] = {}
        """Time of the last call that needed the topic's route, by the event loop's clock."""
        self._lookups: dict[tuple[str, bool], asyncio.Task[TopicRoute]] = {}
        self._topic_added = asyncio.Event()

    async def close(self) -> None:
        """Stop all look-ups."""
        tasks = list(self._lookups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the known route, without a question to a name server."""
        return self._routes.get(topic)

    def created(self, queue: MessageQueue) -> int | None:
        """Return the creation of a queue's topic, by the known route; None if that does not have it."""
        route = self._routes.get(queue.topic)
        return None if route is None else route.created_in(queue.broker_group)

    def used(self, topic: str) -> TopicRoute | None:
        """Return the known route, if any, for one call.

        The route is kept up to date while calls need it, but not for ever: a producer may send to very many topics.
        """
        self._last_used[topic] = asyncio.get_running_loop().time()
        return self._routes.get(topic)

    def group(self, name: str) -> BrokerGroup:
        """Return the broker group of that name. It has no addresses before a route names it."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = BrokerGroup(name, self._on_leader)
        return group

    def group_at(self, address: str) -> BrokerGroup | None:
        """Return the broker group of the node with this address, None if it is unknown."""
        return next((group for group in self.groups.values() if address in group.addresses), None)

    async def get(self, topic: str, deadline: float, *, auto_create: bool = False) -> TopicRoute:
        """Return the route of a topic, looked up if it is not known yet, and kept up to date from then on.

        With `auto_create`, a topic that no name server knows gets a provisional route through the brokers that create
        topics. Raises `NoRouteError` if there is none, `NoNameServerError` if no name server answers.
        """
        self._kept_topics.add(topic)
        return self._routes.get(topic) or await self.refresh(topic, deadline, auto_create=auto_create)

    async def refresh(self, topic: str, deadline: float, *, auto_create: bool = False) -> TopicRoute:
        """Look the route up now. Callers that want the same topic at the same time share one look-up.

        A look-up that no name server has answered is repeated until `deadline`. Raises `ClientClosedError` once the
        client is closed.
        """
        last_error: NoNameServerError | None = None
        while True:
            task = self._start_look_up(topic, auto_create=auto_create)
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.wait((task,))
                if task.cancelled():
                    raise ClientClosedError("the client is closed")
                return task.result()
            except TimeoutError:
                late = DeadlineError("none before the call's deadline")
                raise last_error or NoNameServerError(self._name_servers.addresses, late) from None
            except NoNameServerError as error:
                last_error = error

    async def wait_until_shown(self, topic: str, wanted: Mapping[str, tuple[int, int]], deadline: float) -> None:
        """Wait until the name server shows these numbers of queues to read and to write in each of these broker groups.

        Brokers register a topic right after they store it. Returns at the deadline even if the name server still shows
        other numbers. Raises the error of a route that cannot be looked up then.
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
            await asyncio.sleep(_LOOK_UP_PAUSE_SECONDS)

    def refresh_soon(self, topic: str) -> None:
        """Look the route up in the background."""
        self._start_look_up(topic, auto_create=False)

    def forget(self, topic: str) -> None:
        """Stop keeping the route of a topic up to date."""
        self._routes.pop(topic, None)
        self._last_used.pop(topic, None)
        for topics in (self._watched_topics, self._kept_topics, self.made_later):
            topics.discard(topic)
        for listener in self.forgotten:
            listener(topic)

    def keep(self, topic: str) -> None:
        """Look the route up in the background, and keep it up to date from then on."""
        self._kept_topics.add(topic)
        self.refresh_soon(topic)

    def _forget_unused(self) -> None:
        since = asyncio.get_running_loop().time() - UNUSED_SECONDS
        for topic in [topic for topic, last_used in self._last_used.items() if last_used < since]:
            del self._last_used[topic]
            if topic not in self._kept_topics:
                self.forget(topic)

    def _start_look_up(self, topic: str, *, auto_create: bool) -> asyncio.Task[TopicRoute]:
        if topic not in self._watched_topics:
            self._watched_topics.add(topic)
            self._topic_added.set()
        key = (topic, auto_create)
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.create_task(self._look_up(topic, auto_create=auto_create), name=f"route of {topic}")
            self._lookups[key] = task
            task.add_done_callback(lambda done: self._on_look_up_done(key, done))
        return task

    async def _look_up(self, topic: str, *, auto_create: bool) -> TopicRoute:
        data = await self._request_route(topic)
        provisional = False
        known_route = self._routes.get(topic)
        if known_route is not None and (data is None or not any(broker.broker_addrs for broker in data.broker_datas)):
            return known_route
        if data is None and auto_create:
            provisional = True
            data = await self._request_route(AUTO_CREATE_TOPIC)
        if data is None:
            self.made_later.add(topic)
            raise NoRouteError(topic, "no registered broker has it")
        return self._store_route(topic, data, provisional=provisional)

    async def _request_route(self, topic: str) -> TopicRouteData | None:
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

    def _store_route(self, topic: str, data: TopicRouteData, *, provisional: bool) -> TopicRoute:
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

        def select_sorted(queues: list[MessageQueue], *, absent: bool) -> tuple[MessageQueue, ...]:
            return tuple(sorted(queue for queue in queues if absent is not bool(addresses[queue.broker_group])))

        route = TopicRoute(
            topic,
            select_sorted(readable, absent=False),
            select_sorted(writable, absent=False),
            provisional,
            select_sorted(readable, absent=True),
            select_sorted(writable, absent=True),
            tuple(
                (queues.broker_name, queues.topic_created)
                for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name)
                if queues.topic_created is not None and not provisional
            ),
        )
        if route != self._routes.get(topic):
            self._routes[topic] = route
            for listener in self.listeners:
                listener(route)
        return route

    def _on_look_up_done(self, key: tuple[str, bool], task: asyncio.Task[TopicRoute]) -> None:
        self._lookups.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.DEBUG if isinstance(error, ClientError) else logging.ERROR
            logger.log(level, "no route for %s: %s", key[0], error)

    def _refresh_all(self) -> None:
        for topic in sorted(self._watched_topics):
            self.refresh_soon(topic)

    async def poll(self) -> None:
        """Look all routes up every `poll_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            self._forget_unused()
            self._refresh_all()

    async def watch(self) -> None:
        """Watch the routes of all topics, until cancelled.

        The watches are begun anew when a topic is added, so that they cover that topic, too.
        """
        version = 0
        server = ""
        while True:
            self._topic_added.clear()
            if not self._watched_topics:
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
                await asyncio.sleep(_REWATCH_SECONDS * len(_split_topics(self._watched_topics)))
            elif answer < 0:
                await asyncio.sleep(self._poll_seconds)
            elif answer != version:
                version = answer
                self._refresh_all()

    async def _watch_once(self, version: int) -> int:
        """Return the route version after a change or the time limit; -1 if the server has no route watch."""
        watches = [
            asyncio.create_task(self._watch_part(topics, version)) for topics in _split_topics(self._watched_topics)
        ]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        return next(iter(done)).result()

    async def _watch_part(self, topics: str, version: int) -> int:
        header = RouteWatchHeader(topics=topics, version=version, timeout_millis=int(WATCH_SECONDS * 1000))
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


def _split_topics(topics: Iterable[str]) -> list[str]:
    """Return the topics of each watch, as its request names them."""
    parts: list[list[str]] = []
    room = 0
    for topic in sorted(topics):
        if not parts or len(parts[-1]) == _MAX_WATCH_TOPICS or len(topic) >= room:
            parts.append([])
            room = _MAX_WATCH_CHARS
        parts[-1].append(topic)
        room -= len(topic) + 1
    return [",".join(part) for part in parts[:_MAX_WATCHES]]


def queue_of_key(route: TopicRoute, ordering_key: str) -> MessageQueue:
    """Return the queue of an ordering key.

    It is the same in every process, while the topic's queues stay the same.
    """
    queues = route.all_writable
    return queues[crc32(ordering_key.encode()) % len(queues)]
