"""Types of messages and topics: the attribute `message.type` of RocketMQ 5, and what it allows.

A topic without the attribute is for NORMAL messages, and a MIXED topic for all types. RocketMQ's brokers keep the
attribute and enforce nothing: sends over remoting may have any type. Its proxy refuses a message of another type than
its topic's, unless the topic is a retry or dead-letter topic. It also refuses to recall messages of a topic that is not
for DELAY. Words and rules: RocketMQ's `TopicMessageType`, `TopicAttributes` and `DefaultTopicMessageTypeValidator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from .errors import InvalidParameter, MessageIllegal
from .properties import (
    DELAY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
)
from .topics import MESSAGE_TYPE_ATTRIBUTE, is_dead_letter_topic, is_retry_topic


class MessageType(StrEnum):
    """Type of messages, or of the messages that a topic is for, as the attribute writes it."""

    UNSPECIFIED = "UNSPECIFIED"
    """Type of a topic that takes no message through a proxy."""
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    """Type of a topic for messages of all types. No message has it."""


OF_MESSAGES: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
"""Types that a message may have."""
_DELAYS: Final = (DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)


def type_of_topic(attributes: Mapping[str, str]) -> MessageType:
    """Return the type of a topic with these attributes: NORMAL without the attribute.

    An unknown word, which only an earlier version has let in, allows no message.
    """
    word = attributes.get(MESSAGE_TYPE_ATTRIBUTE, MessageType.NORMAL)
    return MessageType(word) if word in MessageType.__members__ else MessageType.UNSPECIFIED


def type_of_message(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message with these properties."""
    if properties.get(TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in _DELAYS):
        return MessageType.DELAY
    return MessageType.FIFO if SHARDING_KEY in properties else MessageType.NORMAL


def accepted_types(topic_type: MessageType) -> tuple[MessageType, ...]:
    """Return the types of the messages that a topic takes through a proxy."""
    if topic_type is MessageType.MIXED:
        return OF_MESSAGES
    return (topic_type,) if topic_type in OF_MESSAGES else ()


def require_accepted(topic: str, topic_type: MessageType, message_type: MessageType) -> None:
    """Raise `MessageIllegal` unless a topic takes messages of a type. Retry and dead-letter topics take all."""
    if is_retry_topic(topic) or is_dead_letter_topic(topic) or message_type in accepted_types(topic_type):
        return
    raise MessageIllegal(
        f"TopicMessageType validate failed, the expected type is {topic_type}, but actual type is {message_type}: send "
        f"to another topic, or set the attribute {MESSAGE_TYPE_ATTRIBUTE} of {topic}"
    )


def check_message_type(attributes: Mapping[str, str | None]) -> None:
    """Raise `InvalidParameter` if changed attributes of a topic set an unknown type."""
    word = attributes.get(MESSAGE_TYPE_ATTRIBUTE)
    if word is not None and word not in MessageType.__members__:
        raise InvalidParameter(
            f"attribute {MESSAGE_TYPE_ATTRIBUTE}={word[:32]} is not one of {', '.join(MessageType.__members__)}"
        )
