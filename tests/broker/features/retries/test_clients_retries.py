"""Messages that clients store for retry by themselves, as they do when a send-back (36) has failed."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.features.locks.leases import LEASE_S
from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import iter_records
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import Brokers
from dledger_sim.brokers.schedules.retries import RETRIES as RETRIES_OF_BROKERS
from dledger_sim.brokers.schedules.retries import pulled
from tests.broker.features.locks.lock_calls import lock, unlock, with_groups

DEAD_LETTERS, RETRIES = "%DLQ%CG", "%RETRY%CG"
RETRIED = "RETRY_TOPIC\x01T1\x02ORIGIN_MESSAGE_ID\x01first\x02RECONSUME_TIME\x012\x02"


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_groups(broker, "CG", "OTHER")


def stored(broker: ServedBroker, topic: str) -> list[bytes]:
    return broker.memory.bodies(topic) if topic in broker.memory.machine.state.topics else []


def test_a_message_waits_at_the_level_that_its_client_names(broker: ServedBroker, client: FakeClient) -> None:
    answer = client.send_message(RETRIES, b"again", properties=RETRIED + "DELAY\x015\x02", j="2", l="16")
    assert answer.code == 0
    assert broker.memory.bodies(SCHEDULE_TOPIC, 4) == [b"again"]
    assert stored(broker, RETRIES) == []


@pytest.mark.parametrize(
    "left",
    [
        "TIMER_DELAY_SEC\x0110\x02",
        "TIMER_DELAY_MS\x0110\x02",
        "TIMER_DELIVER_MS\x0117000000000000\x02",
        "__STARTDELIVERTIME\x01soon\x02",
    ],
)
def test_what_the_message_itself_once_asked_for_counts_no_more(
    broker: ServedBroker, client: FakeClient, left: str
) -> None:
    answer = client.send_message(RETRIES, b"again", properties=left + "DELAY\x015\x02", j="2")
    assert answer.code == 0, answer.remark
    assert broker.memory.bodies(SCHEDULE_TOPIC, 4) == [b"again"]
    assert stored(broker, TIMER_TOPIC) == []


def test_to_any_other_topic_a_message_names_one_delay(client: FakeClient) -> None:
    answer = client.send_message("T1", b"twice", properties="TIMER_DELAY_SEC\x0110\x02DELAY\x015\x02")
    assert answer.code == 13
    assert "keep one of them" in (answer.remark or "")


def test_it_comes_when_it_is_due_and_says_whose_it_was_and_how_often_it_came() -> None:
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    ext = send_ext(RETRIES_OF_BROKERS, 0, RETRIED + "DELAY\x012\x02", j="2", l="16")
    answers = brokers.ask(brokers.connect(brokers.leader), RequestCode.SEND_MESSAGE_V2, ext, encode_body(9_000, 0))
    brokers.run(3.0)
    assert [answer.code for answer in answers if answer] == [0]
    assert pulled(brokers, RETRIES_OF_BROKERS) == []
    brokers.run(3.0)
    [again] = pulled(brokers, RETRIES_OF_BROKERS)
    properties = parse_properties(again.properties)
    assert again.reconsume_times == 2
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")
    assert (properties["RECONSUME_TIME"], properties["REAL_TOPIC"]) == ("2", RETRIES_OF_BROKERS)


@pytest.mark.parametrize(("times", "asked", "is_dead"), [("2", "2", False), ("3", "2", True), ("3", "-1", False)])
def test_the_clients_limit_counts_unless_it_is_below_0(
    broker: ServedBroker, client: FakeClient, times: str, asked: str, is_dead: bool
) -> None:
    assert client.send_message(RETRIES, b"again", j=times, l=asked).code == 0
    assert (stored(broker, DEAD_LETTERS), stored(broker, RETRIES)) == (
        ([b"again"], []) if is_dead else ([], [b"again"])
    )


def test_what_a_group_that_consumes_in_order_sends_is_a_dead_letter_at_once(
    broker: ServedBroker, client: FakeClient
) -> None:
    assert lock(client, "anna") == {("T1", 0)}
    assert client.send_message(RETRIES, b"given up", properties=RETRIED + "DELAY\x015\x02", j="1", l="16").code == 0
    assert stored(broker, DEAD_LETTERS) == [b"given up"]
    assert stored(broker, SCHEDULE_TOPIC) == []
    properties = parse_properties(next(iter_records(client.pull(DEAD_LETTERS).body)).properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("T1", "first")


def test_locks_of_another_group_mean_nothing(broker: ServedBroker, client: FakeClient) -> None:
    assert lock(client, "anna", group="OTHER") == {("T1", 0)}
    client.send_message(RETRIES, b"again", j="1")
    assert stored(broker, RETRIES) == [b"again"]


def test_a_group_without_running_locks_retries_again(broker: ServedBroker, client: FakeClient) -> None:
    lock(client, "anna")
    broker.advance(LEASE_S + 1)
    client.send_message(RETRIES, b"again", j="1")
    lock(client, "anna")
    unlock(client, "anna")
    client.send_message(RETRIES, b"once more", j="1")
    assert stored(broker, RETRIES) == [b"again", b"once more"]
    assert stored(broker, DEAD_LETTERS) == []
