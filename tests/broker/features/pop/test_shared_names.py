"""Retry topics whose names several groups share: with access control, no group gets in the way of another."""

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_broker.kernel.units import NewRecord
from dledger_remoting.pop import Retry, pop_retry_topic
from dledger_remoting.properties import RETRY_TOPIC, format_properties
from dledger_remoting.signatures import Credentials, signed
from tests.broker.features.accounts.guarded_broker import account, allow, call, guarded_broker
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
    with_revivals,
)

TOPIC_NOT_EXIST, REFUSED = 17, 16
GROUP, TOPIC = "a_b", "c"
OLD_NAME = pop_retry_topic(GROUP, TOPIC, Retry.V1)
NAME = pop_retry_topic(GROUP, TOPIC, Retry.V2)


@pytest.fixture
def broker() -> ServedBroker:
    broker = guarded_broker()
    for topic in (TOPIC, "b_c"):
        broker.memory.create_topic(topic)
    return with_revivals(broker.put_group(GROUP))


@pytest.fixture
def who(broker: ServedBroker) -> Credentials:
    """Return an account that sends to topic c and consumes it as group a_b."""
    return account(broker, "consumer", f"Group:{GROUP} Sub", f"Topic:{TOPIC} Pub Sub")


def popped(client: FakeClient, who: Credentials, group: str = GROUP, topic: str = TOPIC) -> list[Popped]:
    answer = ask(client, POP, signed(pop_ext(topic, consumerGroup=group), b"", who))
    return messages(answer, topic, group)


def come_again(broker: ServedBroker, who: Credentials) -> FakeClient:
    """Pop a message, and wait without an acknowledgement until it is there again."""
    client = broker.client()
    assert call(client, who, 310, send_ext(TOPIC), b"again").code == 0
    assert len(popped(client, who)) == 1
    wait(broker, HIDDEN_S + 1)
    return client


def test_a_new_group_with_a_colliding_name_holds_back_no_retries_of_another_group(
    broker: ServedBroker, who: Credentials
) -> None:
    client = come_again(broker, who)
    broker.put_group("a").put_group("a_b_c")
    (again,) = popped(client, who)
    assert (again.body, again.topic, again.reconsume_times, again.point.retry) == (b"again", TOPIC, 1, Retry.V2)
    assert call(client, who, ACK, ack_ext(again, GROUP)).code == FOUND


def test_groups_with_a_colliding_retry_topic_cannot_pull_or_pop_each_others_retries(
    broker: ServedBroker, who: Credentials
) -> None:
    client = come_again(broker, who)
    other = account(broker, "other", "Group:a Sub", "Group:a_b_c Sub", "Topic:b_c Sub")
    assert popped(client, other, "a", "b_c") == []
    for topic, code in ((OLD_NAME, TOPIC_NOT_EXIST), (NAME, REFUSED)):
        assert call(client, other, 11, pull_ext(topic, consumerGroup="a_b_c")).code == code


def with_a_message_from_before(broker: ServedBroker, properties: dict[str, str] | None = None) -> None:
    """Store a message of topic c that came again to group a_b before there was access control."""
    broker.memory.create_topic(OLD_NAME)
    text = format_properties(properties or {}).encode()
    record = NewRecord(topic=OLD_NAME, queue_id=0, body=b"old", properties=text, born_ms=0, born_host=bytes(8))
    broker.service.writer.write([record], done=lambda _: None)
    broker.settle()


@pytest.mark.parametrize("tells_of", [TOPIC, "elsewhere", None])
def test_retries_from_before_access_control_move_to_the_second_form_of_retry_topic(
    broker: ServedBroker, who: Credentials, tells_of: str | None
) -> None:
    """The topic that its record names does not matter: a record sent to the retry topic may name any topic."""
    with_a_message_from_before(broker, {RETRY_TOPIC: tells_of} if tells_of else {})
    client = broker.client()
    (old,) = popped(client, who)
    assert (old.body, old.topic, old.point.retry) == (b"old", TOPIC, Retry.V1)
    wait(broker, HIDDEN_S + 1)
    (again,) = popped(client, who)
    assert (again.body, again.topic, again.point.retry) == (b"old", TOPIC, Retry.V2)
    assert broker.memory.queue(OLD_NAME).next_offset == 1
    assert call(client, who, ACK, ack_ext(again, GROUP)).code == FOUND


def test_a_message_sent_to_the_retry_topic_of_a_group_is_popped_by_no_other_group(broker: ServedBroker) -> None:
    """Shown as a message of topic c, it would be published there by an account that may not publish."""
    victim = account(broker, "victim", "Group:* Sub", f"Topic:{TOPIC} Sub")
    sender = account(broker, "sender", "Group:a_b_c Sub")
    client = broker.client()
    properties = format_properties({RETRY_TOPIC: TOPIC})
    assert call(client, sender, 310, send_ext(OLD_NAME, properties=properties), b"false").code == 0
    assert popped(client, victim) == []


@pytest.mark.parametrize("other", ["a", "a_b_c"])
def test_messages_in_a_shared_retry_topic_are_popped_by_no_group(
    broker: ServedBroker, who: Credentials, other: str
) -> None:
    allow(broker, "consumer", "Group:*", "Sub")
    with_a_message_from_before(broker, {RETRY_TOPIC: TOPIC})
    broker.put_group(other)
    assert popped(broker.client(), who) == []


@pytest.mark.parametrize("code", [ACK, CHANGE])
def test_an_old_client_can_acknowledge_retries_in_the_second_form_of_retry_topic(
    broker: ServedBroker, who: Credentials, code: int
) -> None:
    """It names the topic that it popped, and hands back the check point that it was given."""
    client = come_again(broker, who)
    (again,) = popped(client, who)
    named = msgspec.structs.replace(again, real_topic=TOPIC)
    ext = {**ack_ext(named, GROUP), "invisibleTime": str(int(HIDDEN_S * 2000))}
    assert call(client, who, code, ext).code == FOUND
    wait(broker, HIDDEN_S + 1)
    assert popped(client, who) == []
