"""The clients that this proxy serves, with their settings and their Telemetry streams.

A client is here from its first stream on. It leaves when it says so, or when it has had no stream for `SILENCE_SECONDS`
and sent nothing. One that only keeps its stream open is not registered at brokers meanwhile: Go's client does so after
its end, which it does not announce. The table can be lost: clients send their settings again over each new stream.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from dledger_client.cluster.surroundings import wall_ms
from dledger_client.subscriptions import subscription_data
from dledger_remoting.codes import PROTOCOL_VERSION
from dledger_remoting.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType
from dledger_remoting.topics import MAX_GROUP_CHARS

from ..registrations import Registration, Registrations
from .answers import Refusal
from .callers import Caller, group_name, topic_name
from .definition import messaging_pb2 as pb
from .filters import subscription_of

SILENCE_SECONDS: Final = 60.0
"""Time in seconds after which a client that has sent nothing counts as gone. Clients heartbeat every 10 or 30 s."""
LOOK_SECONDS: Final = 5.0
"""Interval in seconds of the search for silent clients."""
MAX_WAITING_COMMANDS: Final = 64
"""Maximum number of commands that wait for a client to read them. Further ones are dropped; brokers ask again."""
MAX_SETTINGS_BYTES: Final = 64 << 10
"""Maximum size of a client's settings in bytes."""
MAX_STREAMS_OF_CLIENT: Final = 16
"""Maximum number of Telemetry streams of a client; it opens one for each address of its proxies."""
_FIRST_5_VERSION: Final = 413
_VERSION: Final = re.compile(r"5\.([0-9])\.([0-9])(?:\D.*)?")

logger = logging.getLogger(__name__)


class Channel:
    """A client's Telemetry stream, for commands to it."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[pb.TelemetryCommand] = asyncio.Queue(MAX_WAITING_COMMANDS)

    def send(self, command: pb.TelemetryCommand) -> bool:
        """Queue a command. Returns False if as many wait as may."""
        try:
            self.commands.put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True


class Client:
    """One client. `registration` is None until its settings have come."""

    def __init__(self, caller: Caller, now: float) -> None:
        self.caller = caller
        self.last_seen = now
        self.channels: list[Channel] = []
        self.topics: frozenset[str] = frozenset()
        """Topics of a producer."""
        self.registration: Registration | None = None
        self.is_silent = False
        """True while it has a stream and sends nothing, not even heartbeats."""


class Clients:
    """All clients of a proxy, at most `max_clients`. `count(name)` is called each time that a limit acts."""

    def __init__(self, registrations: Registrations, max_clients: int, count: Callable[[str], None]) -> None:
        self._registrations = registrations
        self._max_clients = max_clients
        self._count = count
        self._clients: dict[str, Client] = {}
        self._producers: dict[str, list[Client]] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def channels(self) -> list[Channel]:
        """All open streams."""
        return [channel for client in self._clients.values() for channel in client.channels]

    def find(self, client_id: str) -> Client | None:
        """Return a client by its id."""
        return self._clients.get(client_id)

    def seen(self, caller: Caller) -> None:
        """Note that a client has sent something."""
        if (client := self._clients.get(caller.client_id)) is not None:
            client.last_seen = self._loop.time()
            client.caller = caller
            if client.is_silent and client.registration is not None:
                client.is_silent = False
                self._registrations.put(client.registration, caller.ext)
            self._registrations.speak(caller.client_id, caller.ext)

    def open(self, caller: Caller, channel: Channel) -> Client:
        """Note a new stream of a client. Raises `Refusal` if there are too many."""
        client = self._clients.get(caller.client_id)
        if client is None:
            if len(self._clients) >= self._max_clients:
                self._count("max_clients")
                raise Refusal(
                    pb.TOO_MANY_REQUESTS, f"the proxy serves {self._max_clients} clients, its limit: use another proxy"
                )
            client = self._clients[caller.client_id] = Client(caller, self._loop.time())
        if len(client.channels) >= MAX_STREAMS_OF_CLIENT:
            self._count("max_streams_of_client")
            raise Refusal(
                pb.TOO_MANY_REQUESTS,
                f"client {caller.client_id} has {MAX_STREAMS_OF_CLIENT} streams, its limit: close some",
            )
        client.caller = caller
        client.channels.append(channel)
        return client

    def close(self, client: Client, channel: Channel) -> None:
        """Note that a stream has ended. Its client may open another one."""
        client.last_seen = self._loop.time()
        client.channels.remove(channel)

    def settle(self, client: Client, settings: pb.Settings) -> None:
        """Register a client as its settings describe it. Raises `Refusal` for settings that cannot be used."""
        if settings.ByteSize() > MAX_SETTINGS_BYTES:
            self._count("max_settings_bytes")
            raise Refusal(
                pb.BAD_REQUEST,
                f"settings of {settings.ByteSize()} bytes, the limit is {MAX_SETTINGS_BYTES}: shorten them",
            )
        caller = client.caller
        if self._clients.setdefault(caller.client_id, client) is not client:  # it has ended, and come again
            raise Refusal(pb.PRECONDITION_FAILED, f"client {caller.client_id} has a newer stream: use that one")
        topics = frozenset(topic_name(topic) for topic in settings.publishing.topics)
        consumer = _consumer(settings) if settings.HasField("subscription") else None
        client.registration = Registration(
            caller.client_id,
            caller.language,
            _version(caller.version),
            tuple(sorted(topic for topic in topics if len(topic) <= MAX_GROUP_CHARS)),
            None if consumer is None else _with_known_versions(consumer, client.registration),
        )
        client.is_silent = False
        self._unlist(client)
        client.topics = topics
        for topic in topics:
            self._producers.setdefault(topic, []).append(client)
        self._registrations.put(client.registration, caller.ext)

    def leave(self, client_id: str) -> None:
        """Forget a client that ends."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._unlist(client)
            self._registrations.remove(client_id)

    def producers_of(self, topic: str) -> Iterator[Client]:
        """Yield the producers of a topic that can be asked, each call beginning with another one."""
        producers = self._producers.get(topic, [])
        if producers:
            producers.append(producers.pop(0))
        for client in reversed(producers):
            if client.channels and not client.is_silent:
                yield client

    async def forget_silent(self) -> None:
        """Forget silent clients, again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.forget_unseen(self._loop.time() - SILENCE_SECONDS)

    def forget_unseen(self, since: float) -> None:
        """Forget clients that have sent nothing since a time, and end the registrations of those that have a stream."""
        for client_id, client in list(self._clients.items()):
            if client.last_seen >= since or (client.is_silent and client.channels):
                continue
            logger.info("event=grpc_client_silent client=%s", client_id)
            if client.channels:
                client.is_silent = True
                self._registrations.remove(client_id)
            else:
                self.leave(client_id)

    def _unlist(self, client: Client) -> None:
        for topic in client.topics:
            producers = self._producers[topic]
            producers.remove(client)
            if not producers:
                del self._producers[topic]
        client.topics = frozenset()


def _consumer(settings: pb.Settings) -> ConsumerData:
    """Return a consumer as a heartbeat describes it. Raises `Refusal` for a filter or name that cannot be used."""
    wanted = settings.subscription
    version = wall_ms()
    entries = []
    for entry in wanted.subscriptions:
        subscription = subscription_of(topic_name(entry.topic), entry.expression)
        entries.append(subscription_data(msgspec.structs.replace(subscription, version=version)))
    return ConsumerData(
        group_name(wanted.group),
        ConsumeType.POP,
        consume_from_where=ConsumeFromWhere.LAST_OFFSET,
        subscription_data_set=sorted(entries, key=lambda one: one.topic),
    )


def _with_known_versions(consumer: ConsumerData, former: Registration | None) -> ConsumerData:
    """Return a consumer whose subscriptions keep their versions if nothing has changed, as clients repeat settings."""
    if former is None or former.consumer is None:
        return consumer
    known = former.consumer
    versionless = [
        [msgspec.structs.replace(entry, sub_version=0) for entry in one.subscription_data_set]
        for one in (consumer, known)
    ]
    return known if versionless[0] == versionless[1] and consumer.group_name == known.group_name else consumer


def _version(text: str) -> int:
    """Return RocketMQ's number of a client's version. Versions that are none of RocketMQ's count as our own."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return PROTOCOL_VERSION
    return _FIRST_5_VERSION + 2 * (10 * int(match[1]) + int(match[2]))
