"""Bodies of requests and answers, as they are decoded, encoded and documented.

One struct serves all three: `msgspec` decodes and encodes by it, and the OpenAPI document has its schema. Names end
with their unit. Times are RFC 3339 with a time zone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from dledger_client import Message
from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.pop import MAX_POP_MESSAGES

MAX_MESSAGES: Final = 1_000
"""Maximum number of messages in one request."""
MAX_INVISIBLE_S: Final = 43_200
MAX_WAIT_S: Final = 30

TopicName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=127, description="name of the topic")]
GroupName: TypeAlias = Annotated[
    str,
    Meta(min_length=1, max_length=120, description="consumer group. Its members share the messages of a topic"),
]
InvisibleS: TypeAlias = Annotated[
    float,
    Meta(ge=1, le=MAX_INVISIBLE_S, description="seconds for which no other member of the group gets the message"),
]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
Outcome: TypeAlias = Literal["not_stored", "unknown"]
ReceiptText: TypeAlias = Annotated[str, Meta(description="opaque receipt of a taken message, valid at any proxy")]
Receipts: TypeAlias = Annotated[
    list[ReceiptText], Meta(min_length=1, max_length=MAX_POP_MESSAGES, description="receipts of messages")
]
BodyAs: TypeAlias = Annotated[
    Literal["text", "base64", "json"],
    Meta(
        description="form of messages' bodies. A body that is no UTF-8 comes as `base64` instead of `text`; "
        "a body that is no JSON comes as `text` instead of `json`"
    ),
]
Tags: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1, max_length=8_192, description="wanted tags: `*` for all, else tags separated by two vertical bars"
    ),
]
Sql: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=8_192, description="SQL92 expression over properties, instead of tags")
]


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to send. Its body is exactly one of `text`, `base64` and `json`."""

    text: Annotated[str, Meta(description="body as text, stored in UTF-8")] | UnsetType = UNSET
    base64: Annotated[bytes, Meta(description="body as bytes, in Base64")] | UnsetType = UNSET
    json: Annotated[Raw, Meta(description="body as any JSON, stored as it is written here")] | UnsetType = UNSET
    tag: Annotated[str, Meta(description="tag by which consumers select messages")] | None = None
    keys: Annotated[list[str], Meta(max_length=64, description="keys by which the message can be found")] = []
    properties: Annotated[dict[str, str], Meta(description="the application's properties")] = {}
    ordering_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=1_024,
                description="messages with the same key go to the same queue, in the order in which they are answered",
            ),
        ]
        | None
    ) = None
    delay_seconds: Annotated[float, Meta(ge=0, le=10**9, description="time until consumers see the message")] | None = (
        None
    )
    deliver_at: Annotated[datetime, Meta(tz=True, description="time from which consumers see the message")] | None = (
        None
    )

    def __post_init__(self) -> None:
        """Refuse a message with no body, with two bodies, or with two times."""
        if sum(body is not UNSET for body in (self.text, self.base64, self.json)) != 1:
            raise ValueError("a message has exactly one of text, base64 and json")
        if self.delay_seconds is not None and self.deliver_at is not None:
            raise ValueError("a message has delay_seconds or deliver_at, not both")

    @property
    def body(self) -> bytes:
        """The bytes that are stored."""
        if isinstance(self.text, str):
            return self.text.encode()
        return bytes(self.json) if isinstance(self.json, Raw) else self.base64 or b""

    def message(self, unique_key: str, properties: dict[str, str]) -> Message:
        """Return the message as our client sends it. `properties` are added to its own, which take precedence."""
        return Message(
            self.body,
            self.keys or None,
            self.tag,
            properties | self.properties,
            unique_key,
            self.delay_seconds,
            self.deliver_at,
            self.ordering_key,
        )


SendRequest: TypeAlias = NewMessage | Annotated[list[NewMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class SendParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of a send."""

    timeout_seconds: Annotated[float, Meta(ge=0.1, le=60, description="time limit for all attempts to store")] = 10.0


class StoredMessage(msgspec.Struct, frozen=True):
    """Place of a stored message. `queue` is the broker group and the number of the queue."""

    place: Annotated[int, Meta(ge=0, description="place of the message in the request, from 0 on")]
    message_id: str
    queue: str
    offset: int
    recall_handle: (
        Annotated[str, Meta(description="handle to recall a message that is delivered later")] | UnsetType
    ) = UNSET
    repeated: Annotated[
        bool, Meta(description="this send repeated an earlier one with the same key, and stored nothing")
    ] = False
    perhaps_twice: Annotated[bool, Meta(description="an earlier attempt may have stored the message as well")] = False


class SendAnswer(msgspec.Struct, frozen=True):
    """The stored messages, in the order of the request."""

    messages: list[StoredMessage]


class RecallRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is not to be delivered, by the handle that its send was answered with."""

    recall_handle: Annotated[str, Meta(min_length=1, max_length=2_048)]


class RecallAnswer(msgspec.Struct, frozen=True):
    """The message that is not delivered any more."""

    message_id: str


class ReceiveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to take messages for a group."""

    group: GroupName
    max: Annotated[int, Meta(ge=1, le=MAX_POP_MESSAGES, description="maximum number of messages")] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="time to wait for the first message")] = 0.0
    invisible_seconds: InvisibleS = 30.0
    filter: Tags = SUBSCRIBE_ALL
    sql: Sql | None = None
    start: Annotated[
        Literal["first", "last"], Meta(description="place at which a new group begins: the first message, or the end")
    ] = "first"
    body_as: BodyAs = "text"


class MessageView(msgspec.Struct, frozen=True):
    """A stored message. Its body is exactly one of `text`, `base64` and `json`."""

    message_id: str
    queue: str
    offset: int
    born_at: Moment
    stored_at: Moment
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    json: Annotated[Raw, Meta(description="body as it was sent")] | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET
    properties: dict[str, str] = {}
    fault: Annotated[str, Meta(description="why the body cannot be read. It is as it is stored then")] | UnsetType = (
        UNSET
    )


class TakenMessage(MessageView, frozen=True, kw_only=True):
    """A message that was taken for a group, until `visible_again_at`."""

    receipt: ReceiptText
    visible_again_at: Moment
    delivery_attempt: Annotated[int, Meta(ge=1, description="1 at the first delivery")]


class ReceiveAnswer(msgspec.Struct, frozen=True):
    """The taken messages, none after a wait in vain."""

    messages: list[TakenMessage]


class AckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that the group is done with."""

    group: GroupName
    receipts: Receipts


class NackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that the group is to get again. That counts as a delivery; after the last one it is a dead letter."""

    group: GroupName
    receipts: Receipts
    delay_seconds: Annotated[
        float, Meta(ge=1, le=MAX_INVISIBLE_S, description="time until the messages are delivered again")
    ] = 1.0


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that take longer. `invisible_seconds` count from now on."""

    group: GroupName
    receipts: Receipts
    invisible_seconds: InvisibleS


class Settled(msgspec.Struct, frozen=True):
    """The end of a request for one receipt.

    `gone` means that the invisible time was over, so the message is delivered again. `failed` has a `detail`.
    """

    receipt: ReceiptText
    state: Literal["done", "gone", "failed"]
    detail: str | UnsetType = UNSET
    next_receipt: Annotated[str, Meta(description="receipt that replaces the given one")] | UnsetType = UNSET
    visible_again_at: Moment | UnsetType = UNSET


class SettleAnswer(msgspec.Struct, frozen=True):
    """One result for each receipt, in the order of the request."""

    results: list[Settled]


class TailParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of a tail. It begins behind `after`, else at `since`, else at `start`."""

    start: Annotated[Literal["first", "last"], Meta(description="end of the queues at which the tail begins")] = "last"
    since: Annotated[datetime, Meta(tz=True, description="time from which messages are shown")] | None = None
    after: Annotated[str, Meta(description="id of an event. The header `Last-Event-ID` takes precedence")] | None = None
    group: Annotated[
        str,
        Meta(min_length=1, max_length=120, description="group in whose name the topic is read. It commits nothing"),
    ] = "http_tail"
    filter: Tags = SUBSCRIBE_ALL
    sql: Sql | None = None
    body_as: BodyAs = "text"


class TopicsAnswer(msgspec.Struct, frozen=True):
    """The names of all topics."""

    topics: list[str]


class QueueOffsets(msgspec.Struct, frozen=True):
    """Offsets of a queue: kept messages are from `first` to `end` - 1."""

    queue: str
    first: int
    end: int


class TopicAnswer(msgspec.Struct, frozen=True):
    """A topic and its readable queues."""

    topic: str
    queues: list[QueueOffsets]


class GroupOffsets(QueueOffsets, frozen=True):
    """Offsets of a queue, with the group's. `committed` is null before its first commit."""

    committed: int | None
    lag: int


class OffsetsParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query for offsets."""

    group: GroupName


class OffsetsAnswer(msgspec.Struct, frozen=True):
    """A group's progress in a topic. `lag` is the number of messages that it still has to process."""

    topic: str
    group: str
    lag: int
    queues: list[GroupOffsets]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error (RFC 9457). `detail` says what to do.

    `outcome` is `not_stored` if the request has changed nothing, so that it can be repeated. It is `unknown` if the
    request may have taken effect. `stored` and `results` hold the part that was done before the failure.
    """

    type: str
    title: str
    status: int
    detail: str
    outcome: Outcome
    code: Annotated[int, Meta(description="response code of the broker")] | UnsetType = UNSET
    stored: list[StoredMessage] | UnsetType = UNSET
    results: list[Settled] | UnsetType = UNSET
