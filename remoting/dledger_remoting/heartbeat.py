"""Body of a heartbeat (34): the groups for which a client produces and consumes, and its subscriptions.

Clients write it differently. C++ writes enums as ordinals and versions as texts, and leaves empty lists out; ali-ons
has no expression type; old Go writes `Push`. All of these are decoded to the one form below. Format: RocketMQ's
`HeartbeatData`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from .bodies import decode_body
from .errors import BodyError
from .filters.subscriptions import EXPRESSION_TAG
from .filters.tags import SUBSCRIBE_ALL, java_hash, split_tags
from .integers import Int64

MAX_TAG_CHARS: Final = 128 << 10
"""Maximum length in characters of all tag expressions of a heartbeat whose tags the server has to split itself."""


class ConsumeType(StrEnum):
    """Way in which a consumer gets its messages."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Distribution of messages in a group: to every member, or each message to one member."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Start of a group without committed offsets. Members are in the order of RocketMQ's ordinals."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(msgspec.Struct, frozen=True, rename="camel"):
    """Subscription of a consumer group to one topic. `code_set` holds the tag codes of `tags_set`."""

    topic: str
    sub_string: str = "*"
    class_filter_mode: bool = False
    tags_set: list[str] = []
    code_set: list[Int64] = []
    sub_version: Int64 = 0
    expression_type: str = EXPRESSION_TAG


class ConsumerData(msgspec.Struct, frozen=True, rename="camel"):
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, frozen=True, rename="camel"):
    """One producer group of a client."""

    group_name: str


class HeartbeatData(msgspec.Struct, frozen=True):
    """A whole heartbeat. With `is_without_sub`, the subscriptions of the client's previous heartbeat stay valid."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = msgspec.field(name="producerDataSet", default_factory=list)
    consumer_data_set: list[ConsumerData] = msgspec.field(name="consumerDataSet", default_factory=list)
    heartbeat_fingerprint: Int64 = msgspec.field(name="heartbeatFingerprint", default=0)
    is_without_sub: bool = msgspec.field(name="isWithoutSub", default=False)


class ClientConfigCheck(msgspec.Struct, frozen=True, rename="camel"):
    """Body of 46: a subscription that a client has checked before it starts."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class _SubscriptionIn(msgspec.Struct, rename="camel"):
    topic: str
    sub_string: str | None = None
    class_filter_mode: bool | None = None
    tags_set: list[str] | None = None
    code_set: list[Int64] | None = None
    sub_version: Int64 | None = None
    expression_type: str | None = None


class _ClientConfigCheckIn(msgspec.Struct, rename="camel"):
    subscription_data: _SubscriptionIn | None = None
    client_id: str | None = None
    group: str | None = None


class _ConsumerIn(msgspec.Struct, rename="camel"):
    group_name: str
    consume_type: int | str | None = None
    message_model: int | str | None = None
    consume_from_where: int | str | None = None
    subscription_data_set: list[_SubscriptionIn] | None = None
    unit_mode: bool | None = None


class _HeartbeatIn(msgspec.Struct):
    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] | None = msgspec.field(name="producerDataSet", default=None)
    consumer_data_set: list[_ConsumerIn] | None = msgspec.field(name="consumerDataSet", default=None)
    heartbeat_fingerprint: Int64 | None = msgspec.field(name="heartbeatFingerprint", default=None)
    is_without_sub: bool | None = msgspec.field(name="isWithoutSub", default=None)


_CONSUME_TYPE_BY_TEXT: Final = {
    **{member.value: member for member in ConsumeType},
    "PUSH": ConsumeType.PUSH,
    "Push": ConsumeType.PUSH,
    "PULL": ConsumeType.PULL,
    "Pull": ConsumeType.PULL,
}
_MESSAGE_MODEL_BY_TEXT: Final = {
    **{member.value: member for member in MessageModel},
    "BroadCasting": MessageModel.BROADCASTING,
    "Clustering": MessageModel.CLUSTERING,
}
_FROM_WHERE_BY_TEXT: Final = {member.value: member for member in ConsumeFromWhere}

EnumT = TypeVar("EnumT", bound=StrEnum)


def encode_heartbeat(heartbeat: HeartbeatData) -> bytes:
    """Encode a heartbeat as JSON."""
    return msgspec.json.encode(heartbeat)


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Decode a heartbeat of any client. Raises `BodyError` that names the field if something is missing or wrong."""
    raw = decode_body(_HeartbeatIn, body, "heartbeat")
    chars = sum(
        len(subscription.sub_string or "")
        for consumer in raw.consumer_data_set or ()
        for subscription in consumer.subscription_data_set or ()
        if not (subscription.tags_set and subscription.code_set)
    )
    if chars > MAX_TAG_CHARS:
        raise BodyError(
            f"heartbeat body: expressions without the codes of their tags have {chars} characters, the limit is "
            f"{MAX_TAG_CHARS}: send tagsSet and codeSet with them"
        )
    return HeartbeatData(
        client_id=raw.client_id,
        producer_data_set=raw.producer_data_set or [],
        consumer_data_set=[_normalize_consumer(consumer) for consumer in raw.consumer_data_set or ()],
        heartbeat_fingerprint=raw.heartbeat_fingerprint or 0,
        is_without_sub=bool(raw.is_without_sub),
    )


def decode_client_config_check(body: bytes) -> ClientConfigCheck:
    """Decode the body of 46, from any client. Raises `BodyError` if it has no subscription."""
    raw = decode_body(_ClientConfigCheckIn, body, "client config")
    if raw.subscription_data is None:
        raise BodyError("client config body: subscriptionData is missing")
    return ClientConfigCheck(raw.client_id or "", raw.group or "", _normalize_subscription(raw.subscription_data))


def _normalize_consumer(raw: _ConsumerIn) -> ConsumerData:
    return ConsumerData(
        group_name=raw.group_name,
        consume_type=_find_member("consumeType", raw.consume_type, _CONSUME_TYPE_BY_TEXT, ConsumeType.PUSH),
        message_model=_find_member("messageModel", raw.message_model, _MESSAGE_MODEL_BY_TEXT, MessageModel.CLUSTERING),
        consume_from_where=_find_member(
            "consumeFromWhere", raw.consume_from_where, _FROM_WHERE_BY_TEXT, ConsumeFromWhere.LAST_OFFSET
        ),
        subscription_data_set=[
            _normalize_subscription(subscription) for subscription in raw.subscription_data_set or ()
        ],
        unit_mode=bool(raw.unit_mode),
    )


def _normalize_subscription(raw: _SubscriptionIn) -> SubscriptionData:
    expression_type = raw.expression_type or EXPRESSION_TAG
    expression = raw.sub_string or SUBSCRIBE_ALL
    tags = raw.tags_set or []
    if not tags and expression_type == EXPRESSION_TAG:
        tags = split_tags(expression)
    return SubscriptionData(
        topic=raw.topic,
        sub_string=expression,
        class_filter_mode=bool(raw.class_filter_mode),
        tags_set=tags,
        code_set=raw.code_set or [java_hash(tag) for tag in tags],
        sub_version=raw.sub_version or 0,
        expression_type=expression_type,
    )


def _find_member(field: str, value: int | str | None, by_text: dict[str, EnumT], default: EnumT) -> EnumT:
    """Return the enum member that a client names by a text or an ordinal."""
    if value is None:
        return default
    if isinstance(value, int):
        members = list(type(default))
        if 0 <= value < len(members):
            return members[value]
    elif value in by_text:
        return by_text[value]
    expected = ", ".join(member.value for member in type(default))
    raise BodyError(f"heartbeat field {field!r} is {value!r}, expected one of {expected} or an ordinal")
