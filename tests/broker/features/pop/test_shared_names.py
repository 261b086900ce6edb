"""Retry topics whose names several groups may have: with access control none of them gets in another one's way."""

from __future__ import annotations

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_broker.kernel.units import NewRecord
from dledger_remoting.pop import Retry, pop_retry_topic
from dledger_remoting.properties import RETRY_TOPIC, format_properties
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.broker.features.accounts.guarded_broker import allow, call, guarded_broker, make_account
from tests.broker.features.pop.pop_calls import (
    ACK,
    CHANGE,
    FOUND,
    HIDDEN_S,
    POP,
    Popped,
    ack_ext,
    ask,
    messages,
    pop_ext,
    wait,
    with_group,
    with_revivals,
)

TOPIC_NOT_EXIST, REFUSED = 17, 16
GROUP, TOPIC = "a_b", "c"
OLD_NAME = pop_retry_topic(GROUP, TOPIC, Retry.V1)
NAME = pop_retry_topic(GROUP, TOPIC, Retry.V2)


def with_consumer(broker: ServedBroker) -> Credentials:
    """An account that sends to topic c and consumes it as group a_b."""
    who = make_account(broker, "consumer")
    allow(broker, "consumer", f"Group:{GROUP}", "Sub")
    allow(broker, "consumer", f"Topic:{TOPIC}", "Pub", "Sub")
    return who


def with_topics_and_groups(broker: ServedBroker) -> ServedBroker:
    for topic in (TOPIC, "b_c"):
        broker.memory.create_topic(topic)
    return with_revivals(with_group(broker, GROUP))


def popped(client: FakeClient, who: Credentials, group: str = GROUP, topic: str = TOPIC) -> list[Popped]:
    answer = ask(client, POP, signed(pop_ext(topic, consumerGroup=group), b"", who))
    return messages(answer, topic, group)


@pytest.fixture
def broker() -> ServedBroker:
    return with_topics_and_groups(guarded_broker())


def come_again(broker: ServedBroker, who: Credentials) -> FakeClient:
    """Have a message popped and not acknowledged until it is there again."""
    client = broker.client()
    assert call(client, who, 310, send_ext(TOPIC), b"again").code == 0
    assert len(popped(client, who)) == 1
    wait(broker, HIDDEN_S + 1)
    return client


def test_a_group_that_is_made_beside_another_one_keeps_nothing_from_it(broker: ServedBroker) -> None:
    client = come_again(broker, who := with_consumer(broker))
    for name in ("a", "a_b_c"):
        broker.groups.put_group(SubscriptionGroupConfig(name), lambda _: None)
    broker.settle()
    (again,) = popped(client, who)
    assert (again.body, again.topic, again.reconsume_times, again.point.retry) == (b"again", TOPIC, 1, Retry.V2)
    assert call(client, who, ACK, ack_ext(again, GROUP)).code == FOUND


def test_what_comes_again_is_nothing_that_a_group_of_the_same_name_can_pull_or_pop(broker: ServedBroker) -> None:
    come_again(broker, with_consumer(broker))
    other = make_account(broker, "other")
    for group in ("a", "a_b_c"):
        allow(broker, "other", f"Group:{group}", "Sub")
    allow(broker, "other", "Topic:b_c", "Sub")
    client = broker.client()
    assert popped(client, other, "a", "b_c") == []
    for topic, code in ((OLD_NAME, TOPIC_NOT_EXIST), (NAME, REFUSED)):
        assert call(client, other, 11, pull_ext(topic, consumerGroup="a_b_c")).code == code


def with_a_message_from_before(broker: ServedBroker, properties: dict[str, str] | None = None) -> None:
    """A message of topic c that came again to group a_b while there was no access control."""
    broker.memory.create_topic(OLD_NAME)
    text = format_properties(properties or {}).encode()
    record = NewRecord(topic=OLD_NAME, queue_id=0, body=b"old", properties=text, born_ms=0, born_host=bytes(8))
    broker.service.writer.write([record], done=lambda _: None)
    broker.settle()


@pytest.mark.parametrize("tells_of", [TOPIC, "elsewhere", None])
def test_what_came_again_before_there_was_access_control_comes_again_by_the_other_name(
    broker: ServedBroker, tells_of: str | None
) -> None:
    """Whatever topic the record tells of: a record that was sent to the retry topic may tell of any."""
    who = with_consumer(broker)
    with_a_message_from_before(broker, {RETRY_TOPIC: tells_of} if tells_of else {})
    client = broker.client()
    (old,) = popped(client, who)
    assert (old.body, old.topic, old.point.retry) == (b"old", TOPIC, Retry.V1)
    wait(broker, HIDDEN_S + 1)
    (again,) = popped(client, who)
    assert (again.body, again.topic, again.point.retry) == (b"old", TOPIC, Retry.V2)
    assert broker.memory.queue(OLD_NAME).next_offset == 1
    assert call(client, who, ACK, ack_ext(again, GROUP)).code == FOUND


def test_what_is_sent_to_the_retry_topic_of_one_group_is_popped_by_no_other(broker: ServedBroker) -> None:
    """Shown as a message of topic c, it would be published there by who may not publish."""
    victim, sender = make_account(broker, "victim"), make_account(broker, "sender")
    allow(broker, "victim", "Group:*", "Sub")
    allow(broker, "victim", f"Topic:{TOPIC}", "Sub")
    allow(broker, "sender", "Group:a_b_c", "Sub")
    client = broker.client()
    properties = format_properties({RETRY_TOPIC: TOPIC})
    assert call(client, sender, 310, send_ext(OLD_NAME, properties=properties), b"false").code == 0
    assert popped(client, victim) == []


@pytest.mark.parametrize("other", ["a", "a_b_c"])
def test_what_lies_in_a_retry_topic_of_several_groups_is_popped_by_none_of_the_pairs(
    broker: ServedBroker, other: str
) -> None:
    who = with_consumer(broker)
    allow(broker, "consumer", "Group:*", "Sub")
    with_a_message_from_before(broker, {RETRY_TOPIC: TOPIC})
    with_group(broker, other)
    assert popped(broker.client(), who) == []


@pytest.mark.parametrize("code", [ACK, CHANGE])
def test_an_old_client_that_knows_no_second_form_is_done_with_what_came_again(broker: ServedBroker, code: int) -> None:
    """It names the topic that it popped, and hands back the check point that it was given."""
    client = come_again(broker, who := with_consumer(broker))
    (again,) = popped(client, who)
    named = msgspec.structs.replace(again, real_topic=TOPIC)
    ext = {**ack_ext(named, GROUP), "invisibleTime": str(int(HIDDEN_S * 2000))}
    assert call(client, who, code, ext).code == FOUND
    wait(broker, HIDDEN_S + 1)
    assert popped(client, who) == []
