"""Dead letters of a consumer group: reading them, and sending them to where they came from.

A copy that is sent says in the property `DEAD_LETTER_ID` which dead letter it is of, and keeps the unique key. So
whether a dead letter was sent before is looked up in the topic itself, whoever did it, and however that ended:

1. A run sends a copy and is interrupted, or loses its connection, before it learns that the copy is stored.
2. The next run finds it by its unique key. One that is still on its way is not found, but is the same idempotent send,
   which brokers store once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

import msgspec

from dledger_client import (
    Admin,
    ClientError,
    InvalidArgumentError,
    NoRouteError,
    NotFoundError,
    Producer,
    ReceivedMessage,
    SendError,
)
from dledger_client.administration.lookups import MAX_MESSAGES_BY_KEY
from dledger_remoting.codes import ResponseCode
from dledger_remoting.topics import DLQ_PREFIX, dead_letter_topic, is_dead_letter_topic

from .access import Access
from .consumer_groups import require_group
from .errors import OperationError
from .messages import own_properties
from .positions import Edge, FromEnd, Position
from .reading import read

DEAD_LETTER_ID: Final = "DEAD_LETTER_ID"
PRODUCER_GROUP: Final = "DLEDGER_DEAD_LETTERS"
"""Group of the producers that send copies."""
PAGE_MESSAGES: Final = 32


class DeadLetters(msgspec.Struct, frozen=True):
    """Number of dead letters that a group has."""

    group: str
    messages: int


class Failure(msgspec.Struct, frozen=True):
    """A dead letter that could not be sent, and why."""

    offset_message_id: str
    topic: str
    reason: str


class Resent(msgspec.Struct):
    """Outcome of resending dead letters: copies sent, copies that were there already, and the others."""

    group: str
    resent: int = 0
    already: int = 0
    failed: list[Failure] = []


async def all_counts(admin: Admin) -> list[DeadLetters]:
    """Return every group that has dead letters."""
    topics = [topic for topic in await admin.topics(include_system=True) if is_dead_letter_topic(topic)]
    counts = [
        DeadLetters(topic.removeprefix(DLQ_PREFIX), await _count_messages(admin, topic)) for topic in sorted(topics)
    ]
    return [count for count in counts if count.messages]


async def _count_messages(admin: Admin, topic: str) -> int:
    route = await admin.topic_route(topic)
    return sum([await admin.end_offset(queue) - await admin.first_offset(queue) for queue in route.readable])


async def count(admin: Admin, group: str) -> int:
    """Return the number of kept dead letters of a group. Raises `NoRouteError` if it never had any."""
    return await _count_messages(admin, dead_letter_topic(group))


async def pages(
    admin: Admin, access: Access, group: str, begin: Position, end: Position
) -> AsyncGenerator[list[ReceivedMessage], None]:
    """Yield the dead letters of a group between two places, those of one queue in order.

    Raises `OperationError` if there is no such group.
    """
    async with access.reader() as consumer:
        try:
            queues = await consumer.queues(dead_letter_topic(group))
        except NoRouteError:
            await require_group(admin, group)
            return
        async for page in read(consumer, queues, begin, end, PAGE_MESSAGES):
            yield page


async def newest(admin: Admin, access: Access, group: str, count: int) -> list[ReceivedMessage]:
    """Return the newest dead letters of a group, the oldest of them first. Raises as `pages` does."""
    letters = [letter async for page in pages(admin, access, group, FromEnd(count), Edge.END) for letter in page]
    letters.sort(key=lambda letter: (letter.stored_timestamp_ms, letter.queue, letter.queue_offset))
    return letters[-count:]


async def named(admin: Admin, group: str, ids: Sequence[str]) -> list[ReceivedMessage]:
    """Return the dead letters with these offset ids. Raises `OperationError` for an id of another message."""
    letters = [await admin.message_by_id(offset_id, keep_unreadable=True) for offset_id in ids]
    for letter in letters:
        if letter.queue.topic != dead_letter_topic(group):
            raise OperationError(
                f"{letter.offset_message_id} is a message of {letter.queue.topic}, no dead letter of {group}",
                "`dledger dlq show` tells their offset ids",
            )
    return letters


class Resending:
    """Sends copies of dead letters to the topics where they came from, or all to `topic`, in their order.

    With `again` it also sends those that were sent before.
    """

    def __init__(self, admin: Admin, producer: Producer, result: Resent, topic: str | None, *, again: bool) -> None:
        self.result = result
        self._admin = admin
        self._producer = producer
        self._topic = topic
        self._again = again

    async def resend(self, letters: Sequence[ReceivedMessage]) -> None:
        """Send what was not sent before. Raises `ClientError` where the next ones would fail as well."""
        target_topics = await asyncio.gather(*map(self._find_target_topic, letters), return_exceptions=True)
        for letter, topic in zip(letters, target_topics, strict=True):
            if topic is None:
                self.result.already += 1
                continue
            try:
                if isinstance(topic, BaseException):
                    raise topic
                await self._send(letter, topic)
            except (InvalidArgumentError, NotFoundError, NoRouteError, SendError) as error:
                if isinstance(error, SendError) and error.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                failure = Failure(letter.offset_message_id, self._topic or letter.topic, str(error))
                self.result.failed.append(failure)
            else:
                self.result.resent += 1

    async def _find_target_topic(self, letter: ReceivedMessage) -> str | None:
        """Return the topic that gets a copy of a dead letter, None if it has a copy already."""
        topic = self._topic or letter.topic
        if letter.fault is not None:
            raise InvalidArgumentError(f"its body cannot be read: {letter.fault}")
        if is_dead_letter_topic(topic):
            raise InvalidArgumentError("it does not say where it came from: name a topic with --topic")
        await self._admin.topic_config(topic)
        if self._again:
            return topic
        copies = await self._admin.messages_by_key(
            topic, letter.message_id, unique=True, max_messages=MAX_MESSAGES_BY_KEY, keep_unreadable=True
        )
        is_sent = any(message.properties.get(DEAD_LETTER_ID) == letter.offset_message_id for message in copies)
        return None if is_sent else topic

    async def _send(self, letter: ReceivedMessage, topic: str) -> None:
        await self._producer.send(
            topic,
            letter.body,
            key=letter.keys or None,
            tags=letter.tags,
            properties=own_properties(letter) | {DEAD_LETTER_ID: letter.offset_message_id},
            unique_key=letter.message_id,
            idempotent=not self._again,
        )


class Wanted(NamedTuple):
    """The dead letters to resend: those with the offset ids, without ids those between two places.

    `topic` gets all of them; None: the topic where each came from. `again` sends also those that were sent before.
    """

    group: str
    ids: Sequence[str] = ()
    begin: Position = Edge.BEGINNING
    end: Position = Edge.END
    topic: str | None = None
    again: bool = False


async def resend(access: Access, wanted: Wanted, result: Resent) -> None:
    """Send dead letters. `result` grows meanwhile, so that it also tells how far an interrupted call came.

    Raises `OperationError` if the next ones would fail as well; the same call then continues.
    """
    async with access.admin() as admin, access.producer(PRODUCER_GROUP) as producer:
        resending = Resending(admin, producer, result, wanted.topic, again=wanted.again)
        async for page in _letters(admin, access, wanted):
            try:
                await resending.resend(page)
            except ClientError as error:
                raise OperationError(
                    f"{error}; until then {counted(result.resent)} of {result.group} resent",
                    "give the command again, it sends none of them twice",
                ) from error


async def _letters(admin: Admin, access: Access, wanted: Wanted) -> AsyncGenerator[list[ReceivedMessage], None]:
    if wanted.ids:
        yield await named(admin, wanted.group, list(dict.fromkeys(wanted.ids)))
        return
    async for page in pages(admin, access, wanted.group, wanted.begin, wanted.end):
        yield page


def counted(number: int) -> str:
    """Return a number of dead letters in words."""
    return f"{number} dead letter" + "s" * (number != 1)
