"""Messages and queues, as calls take and return them.

Timestamps are milliseconds since 1970, offsets count from 0. A `MessageQueue` is a plain tuple
`(topic, broker_group, queue_id)` with names. A `Codec` turns values of the application into bodies, and back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

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
from .errors import ClientError, InvalidArgumentError, refusal
from .namespaces import NO_NAMESPACE, Namespace

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    T = DefaultTypeVar("T", default=bytes)
    T_co = DefaultTypeVar("T_co", covariant=True, default=bytes)
else:  # Python 3.11 knows no default, and needs none: without a codec the values are bytes
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)

CONTENT_TYPE: Final = "contentType"
"""Property with the content type of a body, under the name that Spring gives it in RocketMQ's messages."""

logger = logging.getLogger(__name__)

_MAX_REASON_CHARS: Final = 500


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


@runtime_checkable
class Codec(Protocol[T]):
    """Turns values of one type into bodies of messages, and back. `dledger_client.codecs` has some.

    Both methods may raise any `Exception` for what they cannot turn. They are called on the event loop.
    """

    @property
    def content_type(self) -> str:
        """The content type of all bodies, for example `application/json`."""
        ...

    def encode(self, value: T, /) -> bytes:
        """Return the body for a value."""
        ...

    def decode(self, body: bytes, /) -> T:
        """Return the value of a body."""
        ...


class Message(msgspec.Struct, Generic[T_co], frozen=True):
    """A message to send. `body` is bytes, or a value for the codec of the producer.

    `key` is one key or several, by which the message can be found later. `tags` is the tag that subscriptions filter
    by. `properties` are the application's own; names and values must not contain the characters U+0001 and U+0002.
    `unique_key` replaces the key that the client makes, for messages that several programs may send.

    Consumers see the message `delay_s` seconds after it is stored, or at `deliver_at`, a time with a time zone or ms
    since 1970. If that time has passed, they see it at once. Messages with the same `ordering_key` go to one queue and
    keep the order of the calls.
    """

    body: T_co
    key: str | Iterable[str] | None = None
    tags: str | None = None
    properties: Mapping[str, str] | None = None
    unique_key: str | None = None
    delay_s: float | None = None
    deliver_at: datetime | int | None = None
    ordering_key: str | None = None


def message_of(body: T | Message[T], given: Message) -> Message[T]:
    """Return the message to send: `body` with the other arguments, or `body` itself if it is a `Message`.

    Raises `InvalidArgumentError` if other arguments accompany a `Message`.
    """
    if not isinstance(body, Message):
        return cast("Message[T]", msgspec.structs.replace(given, body=body))
    if given != Message(b""):
        raise InvalidArgumentError(f"{given!r} is given beside a Message, which says by itself what it is")
    return body


def encoded(message: Message[T], codec: Codec[T] | None, argument: str = "body") -> Message:
    """Return a message with the body that `codec` makes of its value, and with the codec's content type.

    A content type among the message's own properties stays. Raises `InvalidArgumentError`, which names the `argument`
    of the call, if the value has no body.
    """
    if codec is None:
        if not isinstance(message.body, bytes):
            check(argument, message.body, bytes)
        return cast("Message", message)
    try:
        body = codec.encode(message.body)
    except Exception as error:
        given, encoder = type(message.body).__name__, type(codec).__name__
        raise InvalidArgumentError(
            f"{argument} of type {given}: {encoder} cannot encode it: {_reason(error)}"
        ) from error
    check(f"{type(codec).__name__}.encode()", body, bytes)
    properties = {CONTENT_TYPE: codec.content_type, **(message.properties or {})}
    return cast("Message", msgspec.structs.replace(message, body=body, properties=properties))


def _reason(error: Exception) -> str:
    """Return the text of an error in one line, however a library lays it out."""
    return " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__


class Settlement(NamedTuple):
    """End of a consumer's work on a message: it is finished, or is to be redelivered (`again`).

    It is redelivered after `delay_s` seconds; None stands for the delay of the group's settings. With `give_up` it is
    not redelivered but becomes a dead letter. `reason` says why the work on it failed.
    """

    again: bool = False
    delay_s: float | None = None
    give_up: bool = False
    reason: str | None = None


class Decoding(msgspec.Struct, Generic[T_co], frozen=True):
    """Result of decoding a body: its value, or the reason why it has none."""

    value: T_co | None = None
    reason: str | None = None


class ReceivedMessage(msgspec.Struct, Generic[T_co], frozen=True):
    """A message as a consumer sees it; the body is decompressed. `value` is what the consumer's codec makes of it.

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
    settle: Callable[[ReceivedMessage[object], Settlement], None] | None = None
    fault: str | None = None
    decoding: Decoding[T_co] | None = None

    @property
    def value(self) -> T_co:
        """The value of the body by the consumer's codec; without a codec, the body. Raises `DecodeError`."""
        if self.decoding is None:
            return cast("T_co", self.body)
        if self.decoding.reason is not None:
            raise DecodeError(self, self.decoding.reason)
        return cast("T_co", self.decoding.value)

    @property
    def content_type(self) -> str | None:
        """The content type that the producer has named, None without any."""
        return self.properties.get(CONTENT_TYPE)

    @property
    def failure_reason(self) -> str | None:
        """Why its last delivery failed, for a redelivered message or a dead letter whose consumer said so."""
        return self.properties.get(names.FAILURE_REASON)

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

    def retry(self, *, delay_s: float | None = None, reason: str | None = None) -> None:
        """Give back a message that could not be processed. It is redelivered, or goes to the dead letter topic.

        It comes after `delay_s` seconds, up to the broker's `timer_max_delay_s`. None: later each time. A consumer that
        keeps order waits that long with the message in its place. A RocketMQ broker only knows levels, so the next
        longer level is used there. The next delivery, or the dead letter, has the first 300 characters of `reason` as
        its `failure_reason`.
        """
        check("delay_s", delay_s, float | None)
        check("reason", reason, str | None)
        at_least(0, delay_s=delay_s)
        if self.settle is not None:
            self.settle(self, Settlement(again=True, delay_s=delay_s, reason=reason))

    def reject(self, *, reason: str | None = None) -> None:
        """Give up on a message: it goes to the group's dead letter topic at once, and does not come again.

        A broadcast consumer has no dead letters, so that this acknowledges its message. Without effect for pulled
        messages. The dead letter has `reason`, as with `retry`.
        """
        check("reason", reason, str | None)
        if self.settle is not None:
            self.settle(self, Settlement(again=True, give_up=True, reason=reason))


class DecodeError(ClientError, ValueError):
    """The body of a message is no value for the codec of its consumer.

    `message` is the whole message, with its body as it came. `reason` says what is wrong with the body.
    """

    def __init__(self, message: ReceivedMessage[object], reason: str) -> None:
        super().__init__(f"message {message.message_id} of {message.queue} does not decode: {reason}")
        self.message = message
        self.reason = reason

    @property
    def failure_reason(self) -> str:
        """The reason for which the delivery of the message has failed."""
        return f"does not decode: {self.reason}"


def decoded(message: ReceivedMessage, codec: Codec[T] | None) -> ReceivedMessage[T]:
    """Return a message with its value, or with the reason for which it has none. Raises nothing."""
    if codec is None:
        return cast("ReceivedMessage[T]", message)
    decoding: Decoding[T]
    if message.fault is not None:
        decoding = Decoding(reason=message.fault)
    else:
        try:
            decoding = Decoding(codec.decode(message.body))
        except Exception as error:
            decoding = Decoding(reason=_reason(error))
    return cast("ReceivedMessage[T]", msgspec.structs.replace(message, decoding=decoding))


def undeliverable(message: ReceivedMessage[object]) -> DecodeError | None:
    """Return why the delivery of a message with its value fails: its body does not decode. Returns None otherwise.

    A message with a `fault` is delivered, because only readers that want such messages get any.
    """
    if message.fault is not None or message.decoding is None or message.decoding.reason is None:
        return None
    return DecodeError(message, message.decoding.reason)


def log_undelivered(error: DecodeError) -> None:
    """Log that the delivery of a message has failed because its body does not decode."""
    message = error.message
    logger.warning(
        "message %s of %s is not delivered, it does not decode: %s", message.message_id, message.queue, error.reason
    )


def delivered(message: ReceivedMessage, codec: Codec[T] | None) -> ReceivedMessage[T] | None:
    """Return a message with its value. Returns None, and logs why, if its body does not decode: its delivery failed.

    A message that its consumer settles is given back, with the reason.
    """
    result = decoded(message, codec)
    if (error := undeliverable(result)) is None:
        return result
    log_undelivered(error)
    message.retry(reason=error.failure_reason)
    return None


def undecoded(message: ReceivedMessage[object]) -> ReceivedMessage:
    """Return a message that its taker gives back as it came."""
    return cast("ReceivedMessage", msgspec.structs.replace(message, decoding=None))


def received_message(
    record: MessageRecord,
    queue: MessageQueue,
    settle: Callable[[ReceivedMessage[object], Settlement], None] | None = None,
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
