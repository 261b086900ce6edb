"""Types of messages and topics, as RocketMQ's proxy judges them."""

import pytest

from dledger_remoting.errors import InvalidParameter, MessageIllegal
from dledger_remoting.message_types import (
    OF_MESSAGES,
    MessageType,
    accepted_types,
    check_message_type,
    require_accepted,
    type_of_message,
    type_of_topic,
)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "NORMAL"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
        ({"__SHARDINGKEY": "k"}, "FIFO"),
        ({"DELAY": "3", "__SHARDINGKEY": "k"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1"}, "DELAY"),
        ({"TIMER_DELAY_MS": "1"}, "DELAY"),
        ({"TRAN_MSG": "true", "DELAY": "3", "__SHARDINGKEY": "k"}, "TRANSACTION"),
    ],
)
def test_properties_decide_about_the_type_of_a_message(properties: dict[str, str], expected: str) -> None:
    assert type_of_message(properties) == expected


def test_a_topic_takes_messages_of_its_own_type_and_a_mixed_topic_all() -> None:
    assert type_of_topic({}) is MessageType.NORMAL
    assert type_of_topic({"message.type": "whatever"}) is MessageType.UNSPECIFIED
    for topic_type in MessageType:
        assert type_of_topic({"message.type": topic_type.value}) is topic_type
        taken = [each for each in MessageType if is_taken("T1", topic_type, each)]
        assert taken == list(accepted_types(topic_type))
    assert accepted_types(MessageType.MIXED) == OF_MESSAGES
    assert accepted_types(MessageType.UNSPECIFIED) == ()


def is_taken(topic: str, topic_type: MessageType, message_type: MessageType) -> bool:
    try:
        require_accepted(topic, topic_type, message_type)
    except MessageIllegal:
        return False
    return True


def test_a_refusal_names_both_types() -> None:
    with pytest.raises(MessageIllegal, match="expected type is DELAY, but actual type is FIFO"):
        require_accepted("T1", MessageType.DELAY, MessageType.FIFO)


def test_retry_and_dead_letter_topics_take_messages_of_all_types() -> None:
    assert all(is_taken(name, MessageType.NORMAL, MessageType.FIFO) for name in ("%RETRY%CG", "%DLQ%CG"))


def test_a_topic_gets_no_unknown_type() -> None:
    for word in (None, *MessageType.__members__):
        check_message_type({"message.type": word})
    with pytest.raises(InvalidParameter, match=r"message\.type=normal"):
        check_message_type({"message.type": "normal"})
