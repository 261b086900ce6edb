"""Values that go in and come out: messages and queues.

Timestamps are milliseconds since 1970, offsets count from 0. A `MessageQueue` is a plain tuple
`(topic, broker_group, queue_id)` with names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from dledger_remoting import properties as names
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.compression import decompress
from dledger_remoting.errors import RemotingError
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records

from .arguments import at_least, check
from .errors import InvalidArgumentError, refusal
from .namespaces import NO_NAMESPACE, Namespace


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker group."""

    topic: str
    broker_group: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_group}/{self.queue_id}"


def queues_in(queues: Iterable[tuple[str, str, int]]) -> list[MessageQueue]:
    """The queues that a caller names, be it by an iterator. Raises `InvalidArgumentError` for what names none."""
    named = list(queues)
    check("queues", named, Sequence[tuple[str, str, int]])
    return [MessageQueue(*queue) for queue in named]


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    `key` is one key or several, by which the message can be found later; `tags` is what subscriptions filter by;
    `properties` are the application's own, names and values without the characters U+0001 and U+0002; `unique_key`
    takes the place of the key that the client makes, where the same message may be sent by several programs.

    Consumers see it `delay_s` seconds after it is stored, or at `deliver_at`, a time with a time zone or ms since 1970;
    at once if that has come. Messages with the same `ordering_key` go to one queue and keep the order of the calls.
    """

    body: bytes
    key: str | Iterable[str] | None = None
    tags: str | None = None
    properties: Mapping[str, str] | None = None
    unique_key: str | None = None
    delay_s: float | None = None
    deliver_at: datetime | int | None = None
    ordering_key: str | None = None


def message_of(body: bytes | Message, given: Message) -> Message:
    """The message with a body, and what is given besides, or one that says it all. Raises `InvalidArgumentError`."""
    if isinstance(body, bytes):
        return msgspec.structs.replace(given, body=body)
    if given != Message(b""):
        raise InvalidArgumentError(f"{given!r} is given beside a Message, which says by itself what it is")
    return body


class Settlement(NamedTuple):
    """How a consumer ended its work on a message: it is done with it, or wants it `again`, after `delay_s` seconds or
    as long as the group's settings say.
    """

    again: bool = False
    delay_s: float | None = None


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message as a consumer sees it; the body is decompressed.

    `topic` is the one that the message was sent to, also for one that comes back through the group's retry topic:
    `queue` is where it was read, as brokers know it. `message_id` is the unique key, or the offset message id if the
    producer made none. U+0020 separates `keys`, no other white space does.
    """

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    physical_offset: int
    born_timestamp_ms: int
    stored_timestamp_ms: int
    reconsume_times: int
    flag: int = 0
    settle: Callable[[ReceivedMessage, Settlement], None] | None = None

    @property
    def queue_id(self) -> int:
        """The id of the queue that the message was read from."""
        return self.queue.queue_id

    @property
    def key(self) -> str | None:
        """The first key, None if there is none."""
        return self.keys[0] if self.keys else None

    def ack(self) -> None:
        """The message is done with; its offset may be committed. Without effect for pulled messages."""
        if self.settle is not None:
            self.settle(self, Settlement())

    def retry(self, *, delay_s: float | None = None) -> None:
        """The message could not be processed; it comes back, or ends in the dead letter topic.

        After `delay_s` seconds, up to the broker's `timer_max_delay_s`; None: later each time. A consumer that keeps
        order waits so long in its place. A RocketMQ broker knows levels only: the next longer one is taken there.
        """
        check("delay_s", delay_s, float | None)
        at_least(0, delay_s=delay_s)
        if self.settle is not None:
            self.settle(self, Settlement(again=True, delay_s=delay_s))


def received_message(
    record: MessageRecord,
    queue: MessageQueue,
    settle: Callable[[ReceivedMessage, Settlement], None] | None = None,
    namespace: Namespace = NO_NAMESPACE,
) -> ReceivedMessage:
    """The message in a record that was read from `queue`, with its topic's name within a namespace.

    Raises `dledger_remoting.errors.BodyError` if its body cannot be decompressed.
    """
    properties = parse_properties(record.properties)
    keys = properties.get(names.KEYS)
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    return ReceivedMessage(
        namespace.plain(properties.get(names.RETRY_TOPIC) or record.topic),
        decompress(record.body, record.sys_flag),
        properties.get(names.TAGS),
        tuple(key for key in keys.split(" ") if key) if keys else (),
        properties,
        queue,
        record.queue_offset,
        properties.get(names.UNIQUE_KEY) or offset_id,
        offset_id,
        record.physical_offset,
        record.born_timestamp,
        record.store_timestamp,
        record.reconsume_times,
        record.flag,
        settle,
    )


def messages_in(response: RemotingCommand, broker_group: str) -> list[ReceivedMessage]:
    """The messages in an answer's body; none if it is no success. Raises `RefusedError` if one cannot be read."""
    if response.code != ResponseCode.SUCCESS:
        return []
    try:
        return [
            received_message(record, MessageQueue(record.topic, broker_group, record.queue_id))
            for record in iter_records(response.body)
        ]
    except RemotingError as error:
        raise refusal(error) from error
