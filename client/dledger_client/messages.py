"""Messages and queues, as calls take and return them.

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
from dledger_remoting.errors import BodyError, RemotingError
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
    """Return the queues that a caller names, perhaps by an iterator. Raises `InvalidArgumentError` for a wrong name."""
    listed = list(queues)
    check("queues", listed, Sequence[tuple[str, str, int]])
    return [MessageQueue(*queue) for queue in listed]


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    `key` is one key or several, by which the message can be found later. `tags` is the tag that subscriptions filter
    by. `properties` are the application's own; names and values must not contain the characters U+0001 and U+0002.
    `unique_key` replaces the key that the client makes, for messages that several programs may send.

    Consumers see the message `delay_s` seconds after it is stored, or at `deliver_at`, a time with a time zone or ms
    since 1970. If that time has passed, they see it at once. Messages with the same `ordering_key` go to one queue and
    keep the order of the calls.
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
    """Return the message to send: `body` with the other arguments, or `body` itself if it is a `Message`.

    Raises `InvalidArgumentError` if other arguments accompany a `Message`.
    """
    if isinstance(body, bytes):
        return msgspec.structs.replace(given, body=body)
    if given != Message(b""):
        raise InvalidArgumentError(f"{given!r} is given beside a Message, which says by itself what it is")
    return body


class Settlement(NamedTuple):
    """End of a consumer's work on a message: it is finished, or is to be redelivered (`again`).

    It is redelivered after `delay_s` seconds; None stands for the delay of the group's settings. With `give_up` it is
    not redelivered but becomes a dead letter.
    """

    again: bool = False
    delay_s: float | None = None
    give_up: bool = False


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message as a consumer sees it; the body is decompressed.

    `topic` is the topic to which the message was sent, even if it came back through the group's retry topic. `queue` is
    the queue from which it was read, as brokers know it. `message_id` is the unique key, or the offset message id if
    the producer made none. Only U+0020 separates `keys`, no other white space.

    `fault` says why the body cannot be read, and `body` is then as it is stored. Only readers with `keep_unreadable`
    get such a message.
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
    fault: str | None = None

    @property
    def queue_id(self) -> int:
        """The id of the queue from which the message was read."""
        return self.queue.queue_id

    @property
    def key(self) -> str | None:
        """The first key, None without any."""
        return self.keys[0] if self.keys else None

    def ack(self) -> None:
        """Acknowledge the message; its offset may be committed. Without effect for pulled messages."""
        if self.settle is not None:
            self.settle(self, Settlement())

    def retry(self, *, delay_s: float | None = None) -> None:
        """Give back a message that could not be processed. It is redelivered, or goes to the dead letter topic.

        It comes after `delay_s` seconds, up to the broker's `timer_max_delay_s`. None: later each time. A consumer that
        keeps order waits that long with the message in its place. A RocketMQ broker only knows levels, so the next
        longer level is used there.
        """
        check("delay_s", delay_s, float | None)
        at_least(0, delay_s=delay_s)
        if self.settle is not None:
            self.settle(self, Settlement(again=True, delay_s=delay_s))

    def reject(self) -> None:
        """Give up on a message: it goes to the group's dead letter topic at once, and does not come again.

        A broadcast consumer has no dead letters, so that this acknowledges its message. Without effect for pulled
        messages.
        """
        if self.settle is not None:
            self.settle(self, Settlement(again=True, give_up=True))


def received_message(
    record: MessageRecord,
    queue: MessageQueue,
    settle: Callable[[ReceivedMessage, Settlement], None] | None = None,
    namespace: Namespace = NO_NAMESPACE,
    *,
    keep_unreadable: bool = False,
) -> ReceivedMessage:
    """Return the message in a record that was read from `queue`, with its topic's name within a namespace.

    If its body cannot be decompressed, the message has a `fault` with `keep_unreadable`. Otherwise this raises
    `dledger_remoting.errors.BodyError`.
    """
    body, fault = record.body, None
    try:
        body = decompress(body, record.sys_flag)
    except BodyError as error:
        if not keep_unreadable:
            raise
        fault = error.remark
    properties = parse_properties(record.properties)
    keys = properties.get(names.KEYS)
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    return ReceivedMessage(
        namespace.plain(properties.get(names.RETRY_TOPIC) or record.topic),
        body,
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
        fault,
    )


def messages_in(
    response: RemotingCommand, broker_group: str, *, keep_unreadable: bool = False
) -> list[ReceivedMessage]:
    """Return the messages in an answer's body; none unless it reports success.

    Raises `RefusedError` if a message cannot be read.
    """
    if response.code != ResponseCode.SUCCESS:
        return []
    try:
        return [
            received_message(
                record, MessageQueue(record.topic, broker_group, record.queue_id), keep_unreadable=keep_unreadable
            )
            for record in iter_records(response.body)
        ]
    except RemotingError as error:
        raise refusal(error) from error
