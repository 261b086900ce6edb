"""Revivals: messages that come again while others cannot."""

import pytest
from served_broker import ServedBroker, send_ext

from dledger.errors import BusyError
from dledger_broker.features.pop import revival
from dledger_broker.features.pop.choosing import RETRIES_FIRST
from dledger_broker.features.pop.revival import MAX_DELIVERIES
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_remoting.headers_pop import UNTAKEN_FIELD
from dledger_remoting.record import MAX_PROPERTIES_BYTES, iter_records
from tests.broker.features.pop.pop_calls import ACK, FOUND, HIDDEN_S, QUEUE_0, Popper, numbers, retry_of, revivals_of

MANY = numbers(MAX_DELIVERIES + 10)
"""Bodies of more messages than one look takes."""


class Hindrance:
    """Refuses to create topics in `uncreated`, and keeps deletions of topics in flight."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uncreated: set[str] = set()
        self.deletions: list[Done] = []
        """Functions that end the deletions in flight."""
        self._stage = broker.memory.machine.overlay.stage_command
        monkeypatch.setattr(broker.memory.machine.overlay, "stage_command", self.stage_command)

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        if isinstance(command, PutTopic) and command.config.topic_name in self.uncreated:
            done(BusyError("busy"))
        elif isinstance(command, DeleteTopic):
            self.deletions.append(done)
        else:
            self._stage(command, done, privileged=privileged)


@pytest.fixture
def hindrance(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Hindrance:
    return Hindrance(broker, monkeypatch)


def pop_many_and_one_later(client: Popper, group: str = "CG") -> None:
    """Pop many deliveries of T1, and a second later one delivery of T2."""
    for body in MANY:
        client.store(body)
        assert len(client.pop(consumerGroup=group, maxMsgNums="1")) == 1
    client.wait(1)
    client.store(b"later", topic="T2")
    assert len(client.pop("T2")) == 1


def assert_many_come_again(client: Popper) -> None:
    client.wait(3)
    assert sorted((body for _ in range(4) for body in client.pop_bodies()), key=int) == MANY


def test_later_revivals_do_not_wait_for_a_retry_topic_that_is_not_created(client: Popper, hindrance: Hindrance) -> None:
    hindrance.uncreated = {retry_of()}
    pop_many_and_one_later(client)
    client.wait(HIDDEN_S + 2)
    assert (client.pop(), client.pop_bodies("T2")) == ([], [b"later"])
    hindrance.uncreated = set()
    assert_many_come_again(client)


def test_later_revivals_wait_for_no_dead_letter_topic_that_is_not_created(client: Popper, hindrance: Hindrance) -> None:
    client.broker.put_group("SPENT", retry_max_times=0)
    hindrance.uncreated = {"%DLQ%SPENT"}
    pop_many_and_one_later(client, "SPENT")
    client.wait(HIDDEN_S + 2)
    assert client.pop_bodies("T2") == [b"later"]


def test_later_revivals_do_not_wait_for_the_deletion_of_a_topic(client: Popper, hindrance: Hindrance) -> None:
    pop_many_and_one_later(client)
    client.broker.memory.delete_topic("T1")
    client.wait(HIDDEN_S + 2)
    assert client.pop_bodies("T2") == [b"later"]
    assert (revivals_of(client.broker).unreadable, client.table.open_count) == (0, len(MANY) + 1)
    hindrance.deletions.pop()(BusyError("busy"))
    assert_many_come_again(client)


def test_messages_popped_under_an_earlier_leader_stay_hidden_for_a_while(broker: ServedBroker, client: Popper) -> None:
    """Another leader does not know since when the message is hidden, while group time says that its time is over."""
    client.store(b"a")
    client.pop(invisibleTime="5000")
    client.wait(1)
    broker.lead_anew()
    broker.group.on_leadership(broker.memory.machine.leadership)
    client.wait(9)
    assert client.pop() == []
    client.wait(2)
    assert client.pop_bodies() == [b"a"]


def test_a_redelivered_message_with_full_properties_changes_only_its_topic(client: Popper) -> None:
    sizes = range(MAX_PROPERTIES_BYTES, 0, -1)
    sent = (client.call(10, send_ext("T1", properties=f"k\x01{'v' * size}\x02"), b"a") for size in sizes)
    assert next(answer for answer in sent if answer.code == FOUND)
    (first,) = iter_records(client.ask_pop().body)
    client.wait(HIDDEN_S + 2)
    answer = client.ask_pop()
    (again,) = iter_records(answer.body)
    assert (again.topic, again.reconsume_times) == (retry_of(), 1)
    assert (again.body, again.properties, again.born_timestamp) == (b"a", first.properties, first.born_timestamp)
    point = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} 0 1 broker-a 0 0"
    assert client.call(ACK, {**QUEUE_0, "topic": retry_of(), "extraInfo": point, "offset": "0"}).code == FOUND
    assert client.table.open_count == 0


def test_a_message_that_is_given_back_is_redelivered_at_once_without_counting_a_delivery(client: Popper) -> None:
    client.broker.put_group(retry_max_times=0)
    client.store(b"x")
    for _ in range(3):
        [message] = client.pop()
        assert message.reconsume_times == 0
        assert client.hide(message, 0, **{UNTAKEN_FIELD: "true"})[0] == FOUND
        client.wait(1)
    [message] = client.pop()
    client.wait()
    assert client.pop() == [], "with no retries allowed, one delivery that counts is the last"


def test_a_copy_says_why_its_delivery_failed_and_the_next_one_only_its_own(client: Popper) -> None:
    client.broker.put_group(retry_max_times=2)
    client.store(b"x")
    for told, reason in (({}, None), ({"failureReason": "ValueError:\nno price"}, None), ({}, "ValueError: no price")):
        [message] = client.pop()
        assert message.reason == reason
        client.hide(message, HIDDEN_S, **told)
        client.wait(HIDDEN_S + 2)
    [letter] = client.dead_letters()
    assert b"FAILURE" not in letter.properties


def test_reasons_of_failed_deliveries_are_bounded(client: Popper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revival, "MAX_REASONS", 1)
    client.store(b"a", b"b")
    for message in client.pop():
        client.hide(message, HIDDEN_S, failureReason=message.body.decode())
    client.wait(HIDDEN_S + 2)
    assert {message.body: message.reason for message in client.pop()} == {b"a": None, b"b": "b"}


def test_groups_that_pop_in_turn_all_get_their_retries(broker: ServedBroker, client: Popper) -> None:
    """There are as many groups as pops between two that look for retries first, and new messages for all of them."""
    groups = [f"G{number}" for number in range(RETRIES_FIRST)]
    client.store(b"left")
    for group in groups:
        broker.put_group(group)
        assert client.pop_bodies(consumerGroup=group) == [b"left"]
    client.wait()
    got: set[str] = set()
    for _ in range(60):
        client.store(b"new")
        for group in groups:
            [message] = client.pop(consumerGroup=group, maxMsgNums="1")
            assert client.ack(message, group) == FOUND
            got |= {group} if message.body == b"left" else set()
    assert got == set(groups)
