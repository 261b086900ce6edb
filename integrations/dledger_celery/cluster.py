"""Cluster as a kombu connection uses it: a producer, an administrator, and the clients that are made for its queues."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypedDict

import msgspec
from kombu.exceptions import ChannelError

from dledger_client import (
    Admin,
    ClientClosedError,
    ClientError,
    Credentials,
    InvalidArgumentError,
    NoRouteError,
    NotFoundError,
    Producer,
    PullConsumer,
    SendError,
    SimpleConsumer,
    SubscriptionGroupConfig,
    Tls,
)
from dledger_remoting.codes import ResponseCode
from dledger_remoting.topics import RETRY_PREFIX

from .envelopes import Payload, make_message
from .settings import Settings

CLIENT_GROUP: Final = "kombu"
"""Name of the producer group, and of the group in whose name exchanges are read, which commits nothing."""
MAX_PRIORITY: Final = 9

logger = logging.getLogger(__name__)


class ClusterUnavailableError(ConnectionError):
    """The cluster did not answer in time, or was not there. Kombu connects again, and repeats what failed."""


class Account(TypedDict):
    """The arguments by which a client signs and encrypts."""

    credentials: Credentials | None
    tls: Tls | None


@contextmanager
def kombus_errors() -> Iterator[None]:
    """Raise errors of the client as kombu knows them: as a lost connection if trying again may help."""
    try:
        yield
    except InvalidArgumentError as error:
        raise ValueError(str(error)) from error
    except ClientError as error:
        if error.retryable or isinstance(error, ClientClosedError):
            raise ClusterUnavailableError(str(error)) from error
        raise ChannelError(str(error)) from error


class Cluster:
    """Clients of one process and connection. All methods belong to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._account = Account(credentials=settings.credentials, tls=settings.tls)
        self._producer = Producer(
            settings.name_servers,
            group=CLIENT_GROUP,
            timeout=settings.timeout,
            idempotent=settings.idempotent,
            **self._account,
        )
        self._admin = Admin(settings.name_servers, timeout=settings.timeout, **self._account)
        self._topics: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the clients."""
        await self._producer.start()
        await self._admin.start()

    async def check(self) -> None:
        """Raise `ClientError` unless a name server answers that knows brokers."""
        await self._admin.broker_groups()

    async def close(self) -> None:
        """Wait for sends under way, and close all clients."""
        if self._closing:
            await asyncio.wait(self._closing)
        await self._producer.close()
        await self._admin.close()

    def make_task_consumer(self, group: str, topic: str) -> SimpleConsumer:
        """Return a consumer of a queue's topic, not started."""
        return SimpleConsumer(
            self.settings.name_servers,
            group,
            topic,
            invisible=self.settings.visibility_timeout,
            timeout=self.settings.timeout,
            **self._account,
        )

    def close_soon(self, consumer: SimpleConsumer) -> None:
        """Close a consumer in the background: it waits until its last request for messages is answered."""
        task = asyncio.create_task(consumer.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def make_reader(self) -> PullConsumer:
        """Return a reader for an exchange's topic, not started."""
        return PullConsumer(self.settings.name_servers, CLIENT_GROUP, timeout=self.settings.timeout, **self._account)

    async def ensure_topic(self, topic: str, queues: int) -> None:
        """Create a topic unless it exists."""
        if topic in self._topics:
            return
        if not await self.has_topic(topic):
            await self._admin.create_topic(topic, queues=queues)
        self._topics.add(topic)

    async def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists."""
        try:
            await self._admin.topic_route(topic)
        except (NoRouteError, NotFoundError):
            return False
        return True

    async def ensure_group(self, group: str) -> None:
        """Give a queue's group the limit of deliveries of `max_deliveries`, if that is set."""
        if self.settings.max_deliveries is None:
            return
        limit = self.settings.max_deliveries - 1
        config = (await self._admin.groups()).get(group)
        if config is None or config.retry_max_times != limit:
            wanted = msgspec.structs.replace(config or SubscriptionGroupConfig(group), retry_max_times=limit)
            await self._admin.create_group(wanted)

    async def send(self, topic: str, payload: Payload) -> None:
        """Send a message, for later if it has an ETA. Returns when a majority has stored it."""
        message = make_message(payload, self.settings.longest_delay, time.time())
        try:
            result = await self._producer.send(topic, message)
        except SendError as error:
            if message.deliver_at is None or error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            raise ChannelError(f"{error}; set the transport option longest_delay to that limit, or below") from error
        if result.repeated:
            logger.info("%s was stored before, and is not stored again", message.unique_key)

    async def send_again(self, topic: str, body: bytes, payload: Payload) -> None:
        """Send a message that has come before its ETA, for later."""
        message = make_message(payload, self.settings.longest_delay, time.time())
        await self._producer.send(topic, msgspec.structs.replace(message, body=body))

    async def size(self, group: str, topics: list[str]) -> int:
        """Return the number of messages that a group has not acknowledged, those that are worked on included."""
        total = 0
        for topic in await self._with_retries(group, topics):
            total += sum(queue.lag for queue in await self._admin.offsets(group, topic))
        return total

    async def purge(self, group: str, topics: list[str]) -> int:
        """Have a group skip all messages of these topics. Returns their number."""
        count = await self.size(group, topics)
        for topic in await self._with_retries(group, topics):
            await self._admin.reset_offsets(group, topic, "last")
        return count

    async def delete(self, group: str, topics: list[str]) -> None:
        """Delete the topics of a queue, and its group."""
        existing = set(await self._admin.topics())
        for topic in topics:
            self._topics.discard(topic)
            if topic in existing:
                await self._admin.delete_topic(topic)
        try:
            await self._admin.delete_group(group)
        except NotFoundError:
            logger.debug("group %s did not exist", group)

    async def _with_retries(self, group: str, topics: list[str]) -> list[str]:
        """Return those of the topics that exist, and the topics in which their messages come again."""
        known = await self._admin.topics(include_system=True)
        existing = set(known)
        found = []
        for topic in topics:
            names = (topic, f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}")
            found += [name for name in names if name in existing]
        return found
