"""Registrations of the proxy's clients at the brokers, so that operators and brokers see them as any other client.

The proxy heartbeats for each client to all nodes of all broker groups, with the client's id, address, language,
version, groups and subscriptions. So commands such as `mqadmin consumerConnection` show it. Brokers ask it about
transactions, and such a question comes to whichever proxy the client uses.

A node takes up to 1,024 clients over one connection. So clients are spread over lanes, each with its own connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from dledger_base.supervision import supervise
from dledger_client.cluster.connection import Connection
from dledger_client.cluster.core import ATTEMPT_SECONDS, ClientCore, new_client_id
from dledger_client.cluster.routes import TopicRoute
from dledger_client.errors import ClientError
from dledger_remoting.codes import LanguageCode, RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import UnregisterClientHeader, encode_ext
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.topics import HALF_TOPIC

from .backends import Cluster

LANE_CLIENTS: Final = 1_000
"""Maximum number of clients that heartbeat over one connection."""
BEAT_SECONDS: Final = 10.0
"""Interval in seconds of heartbeats. Leases need one in half their length."""
BEATS_AT_ONCE: Final = 64
"""Maximum number of heartbeats of a lane that wait for one node's answers."""

OnRequest = Callable[[Connection, RemotingCommand], bool]
"""Handles a request of a broker to a client. Returns whether it is answered, or needs no answer."""

logger = logging.getLogger(__name__)


class Registration(msgspec.Struct, frozen=True):
    """One client, as brokers are told. Topics and groups are names that brokers know."""

    client_id: str
    language: LanguageCode
    version: int
    producer_groups: tuple[str, ...] = ()
    consumer: ConsumerData | None = None

    @property
    def heartbeat(self) -> HeartbeatData:
        """The body of its heartbeats."""
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(name) for name in self.producer_groups],
            consumer_data_set=[] if self.consumer is None else [self.consumer],
        )


class _Lane:
    """Heartbeats of up to `LANE_CLIENTS` clients over one connection to each node."""

    def __init__(self, cluster: Cluster, on_request: OnRequest) -> None:
        self.clients: dict[str, Registration] = {}
        self.speech: dict[str, Mapping[str, str]] = {}
        """Ext fields that say for which client a heartbeat is, with its newest signature, by client id."""
        self._core = ClientCore(
            cluster.name_servers,
            client_id=new_client_id(),
            on_request=on_request,
            credentials=cluster.credentials,
            tls=cluster.tls,
        )
        self._refused: dict[str, str] = {}

    def start(self) -> None:
        """Begin to follow the routes of the topic that every broker group has."""
        self._core.start()
        self._core.routes.listeners.append(self._on_route)
        self._core.routes.keep(HALF_TOPIC)

    def _on_route(self, _route: TopicRoute) -> None:
        """Heartbeat at once to nodes that are new, the first ones among them."""
        self._core.spawn(self.beat(list(self.clients.values())), "heartbeats of clients to new nodes")

    async def close(self) -> None:
        """Close the connections, which ends the registrations."""
        await self._core.close()

    async def beat(self, clients: Iterable[Registration]) -> None:
        """Send heartbeats of clients to all nodes, and wait for the answers. A node that fails gets the next one."""
        beating = list(clients)
        await asyncio.gather(*(self._beat_node(address, beating) for address in self._addresses()))

    async def _beat_node(self, address: str, clients: Sequence[Registration]) -> None:
        """Send heartbeats to one node, a few at a time, or none if it cannot be reached. It delays no other node's."""
        try:
            await self._core.pool.get(address, asyncio.get_running_loop().time() + ATTEMPT_SECONDS)
        except ClientError as error:
            logger.debug("event=node_not_reached node=%s reason=%r", address, str(error))
            return
        slots = asyncio.Semaphore(BEATS_AT_ONCE)
        await asyncio.gather(*(self._beat(slots, address, client) for client in clients))

    async def leave(self, client: Registration, speech: Mapping[str, str]) -> None:
        """Take a client out of its groups on all nodes."""
        groups: list[str | None] = [*client.producer_groups] or [None]
        consumer = None if client.consumer is None else client.consumer.group_name
        calls = [
            self._call(address, client, RequestCode.UNREGISTER_CLIENT, {**encode_ext(header), **speech}, b"")
            for address in self._addresses()
            for group in groups
            for header in (UnregisterClientHeader(client.client_id, group, consumer),)
        ]
        await asyncio.gather(*calls)

    async def _beat(self, slots: asyncio.Semaphore, address: str, client: Registration) -> None:
        async with slots:
            speech = self.speech.get(client.client_id, {})
            await self._call(address, client, RequestCode.HEART_BEAT, speech, encode_heartbeat(client.heartbeat))

    async def _call(self, address: str, client: Registration, code: int, ext: Mapping[str, str], body: bytes) -> None:
        loop, remark = asyncio.get_running_loop(), ""
        try:
            deadline = loop.time() + ATTEMPT_SECONDS
            connection = await self._core.pool.get(address, deadline)
            command = RemotingCommand(
                code,
                ext=dict(ext),
                body=body,
                language=client.language,
                version=client.version,
            )
            answer = await connection.call(command, deadline)
        except ClientError as error:
            logger.debug("event=client_not_registered node=%s client=%s reason=%r", address, client.client_id, error)
            return
        remark = f"code {answer.code}: {answer.remark}" if answer.code else ""
        if remark and self._refused.get(client.client_id) != remark:
            logger.warning("event=client_refused node=%s client=%s reason=%r", address, client.client_id, remark)
        if remark:
            self._refused[client.client_id] = remark
        else:
            self._refused.pop(client.client_id, None)

    def _addresses(self) -> list[str]:
        groups = self._core.routes.groups.values()
        return list(dict.fromkeys(address for group in groups for address in group.addresses))


class Registrations:
    """Registrations of all clients of a proxy. `on_request` is called with requests of brokers to them."""

    def __init__(self, cluster: Cluster, on_request: OnRequest) -> None:
        self._cluster = cluster
        self._on_request = on_request
        self._lanes: list[_Lane] = []
        self._lane_of: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.restarts = 0

    def start(self) -> None:
        """Begin to heartbeat."""
        self._spawn(supervise(self._beat_regularly, "heartbeats of clients", self._count_restart))

    async def close(self) -> None:
        """End all registrations."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes:
            await lane.close()

    def speak(self, client_id: str, ext: Mapping[str, str]) -> None:
        """Note the newest signature of a client. Its heartbeats are sent with it."""
        if (lane := self._lane_of.get(client_id)) is not None:
            lane.speech[client_id] = ext

    def put(self, client: Registration, ext: Mapping[str, str]) -> None:
        """Register a client, or tell brokers what has changed of it. `ext` is that of `speak`."""
        lane = self._lane_of.get(client.client_id)
        if lane is None:
            lane = self._lane_of[client.client_id] = self._free_lane()
        lane.speech[client.client_id] = ext
        if lane.clients.get(client.client_id) != client:
            lane.clients[client.client_id] = client
            self._spawn(lane.beat([client]))

    def remove(self, client_id: str) -> None:
        """Tell brokers that a client has left."""
        lane = self._lane_of.pop(client_id, None)
        if lane is not None and (client := lane.clients.pop(client_id, None)) is not None:
            self._spawn(lane.leave(client, lane.speech.pop(client_id, {})))

    async def beat(self) -> None:
        """Heartbeat for all clients now."""
        await asyncio.gather(*(lane.beat(list(lane.clients.values())) for lane in self._lanes))

    def _free_lane(self) -> _Lane:
        for lane in self._lanes:
            if len(lane.clients) < LANE_CLIENTS:
                return lane
        lane = _Lane(self._cluster, self._on_request)
        lane.start()
        self._lanes.append(lane)
        return lane

    async def _beat_regularly(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with suppress(TimeoutError):  # a node that hangs must not delay the next heartbeats to the others
                async with asyncio.timeout(BEAT_SECONDS):
                    await self.beat()

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count_restart(self) -> None:
        self.restarts += 1
