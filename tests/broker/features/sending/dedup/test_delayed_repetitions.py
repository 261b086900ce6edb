"""Idempotent sends that ask for a delay: a repetition gets the first answer, whether the message waits, or was due."""

from __future__ import annotations

from dataclasses import replace

import pytest
from served_broker import MakeBroker, ServedBroker

from dledger_broker.features.delay.table import TIMERS
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.testing.environment import START_MS
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import TIMER_DELAY_MS
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TIMEOUT_S, TOPIC
from tests.broker.features.delay.delayed_brokers import Delayed
from tests.broker.features.delay.test_moved_messages import trim

WINDOW_MS = 10_000
KEY = "UNIQ_KEY\x01K1\x02"


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """A broker that leads, has topic T1, and remembers sends for `WINDOW_MS`."""
    broker = make_broker()
    config = replace(broker.config, idempotent_window_ms=WINDOW_MS, max_idempotent_keys=100)
    GroupSettings(broker.memory.machine, broker.memory.env, config)
    broker.settle()
    return broker


def send(broker: ServedBroker, asks: str, body: bytes = b"later", **fields: str) -> RemotingCommand:
    sent = {"idempotent": "true", **fields}
    answer = broker.client().send_message("T1", body, properties=KEY + asks, **sent)
    assert answer.code == 0, answer.remark
    return answer


def pending(broker: ServedBroker) -> int:
    return broker.memory.machine.state.table(TIMERS).total.rows


@pytest.mark.parametrize(
    ("asks", "topic"),
    [
        ("DELAY\x013\x02", SCHEDULE_TOPIC),
        ("TIMER_DELAY_MS\x0160000\x02", TIMER_TOPIC),
        (f"TIMER_DELIVER_MS\x01{START_MS + 60_000}\x02", TIMER_TOPIC),
        (f"TIMER_DELIVER_MS\x01{START_MS + 60_000}", TIMER_TOPIC),
    ],
)
def test_a_repetition_gets_the_first_answer_and_nothing_waits_twice(
    broker: ServedBroker, asks: str, topic: str
) -> None:
    first = send(broker, asks, e="2")
    broker.advance(1.0)
    again = send(broker, asks, e="1", g="1700000009999")
    assert again.ext == first.ext
    assert again.ext["queueId"] == "2"
    assert ("recallHandle" in again.ext) is (topic == TIMER_TOPIC)
    assert pending(broker) == 1
    assert broker.counters.idempotent_repeats == 1


@pytest.mark.parametrize("change", [{"body": b"other"}, {"asks": "TIMER_DELAY_MS\x0160001\x02"}, {"h": "7"}])
def test_anything_different_is_stored(broker: ServedBroker, change: dict) -> None:
    sent = {"asks": "TIMER_DELAY_MS\x0160000\x02"}
    send(broker, **sent)
    send(broker, **sent | change)
    assert pending(broker) == 2


def test_a_message_that_was_not_sent_idempotently_is_not_known_again(broker: ServedBroker) -> None:
    asks = "TIMER_DELAY_MS\x0160000\x02"
    send(broker, asks, idempotent="false")
    send(broker, asks, idempotent="false")
    assert pending(broker) == 2


def test_a_repetition_that_comes_when_the_message_is_due_is_one(broker: ServedBroker) -> None:
    """Sent anew it would be stored at once, as a message whose time has come."""
    asks = f"TIMER_DELIVER_MS\x01{START_MS + 2_000}\x02"
    first = send(broker, asks)
    broker.advance(5.0)
    assert send(broker, asks).ext == first.ext
    assert broker.memory.bodies("T1") == []


def test_what_was_stored_at_once_is_known_again(broker: ServedBroker) -> None:
    asks = f"TIMER_DELIVER_MS\x01{START_MS - 1}\x02"
    first = send(broker, asks)
    assert send(broker, asks).ext == first.ext
    assert broker.memory.bodies("T1") == [b"later"]


def test_a_repetition_is_known_though_no_more_may_wait(make_broker: MakeBroker) -> None:
    broker = make_broker(max_pending_timers=1, idempotent_window_ms=WINDOW_MS)
    GroupSettings(broker.memory.machine, broker.memory.env, broker.config)
    broker.settle()
    first = send(broker, "DELAY\x013\x02")
    assert send(broker, "DELAY\x013\x02").ext == first.ext


# ---------------------------------------------------------------- groups


def ask(delayed: Delayed, name: str, delay_ms: int = 8_000) -> list[Answer | None]:
    """Send the same message again, by a node."""
    code, ext, _ = delayed.brokers.workload.make_send(TOPIC, 0, [1], batch=False)
    ext |= {"i": f"{KEY}{TIMER_DELAY_MS}\x01{delay_ms}\x02", "idempotent": "true"}
    answers: list[Answer | None] = []
    command = RemotingCommand(code, ext=ext, body=encode_body(1, 0))
    delayed.brokers.connect(name).call(command, TIMEOUT_S, answers.append)
    return answers


def test_a_repetition_at_the_next_leader_is_known_and_delivered_once() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    first = ask(delayed, brokers.leader)
    brokers.run(0.5)
    brokers.group.kill(brokers.leader)
    brokers.run(4.0)
    again = [ask(delayed, name) for name in brokers.group.nodes if brokers.group.nodes[name].life]
    brokers.run(1.0)
    assert [[answer and (answer.code, answer.ext) for answer in answers] for answers in again] == [
        [answer and (0, answer.ext) for answer in first]
    ] * 2
    assert delayed.truth.happened["delayed message stored"] == 1
    brokers.run(6.0)
    assert delayed.truth.happened["delayed message delivered"] == 1


def test_a_repetition_is_known_though_the_log_is_trimmed_where_the_message_waited_first() -> None:
    """It was moved: the record that the group remembers is gone, another one waits."""
    delayed = Delayed()
    brokers = delayed.brokers
    first = ask(delayed, brokers.leader, 60_000)
    delayed.fill_log()
    trim(delayed)
    brokers.run(3.0)
    assert delayed.truth.happened["row moved"] == 1
    trim(delayed)
    brokers.run(3.0)
    again = ask(delayed, brokers.follower, 60_000)
    brokers.run(1.0)
    answers = [answer for answer in (*first, *again) if answer]
    assert [answer.code for answer in answers] == [0, 0]
    assert answers[0].ext["msgId"] < answers[1].ext["msgId"]
    assert answers[0].ext["recallHandle"] == answers[1].ext["recallHandle"]
    assert [table.total.rows for table in delayed.tables()] == [1, 1, 1]


def test_a_repetition_of_one_in_flight_waits_for_its_outcome() -> None:
    """1. The first attempt is on its way to slow followers. 2. It is repeated, through another node."""
    delayed = Delayed()
    brokers = delayed.brokers
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, 0.2)
    first, again = ask(delayed, brokers.leader), ask(delayed, brokers.follower)
    brokers.run(0.1)
    assert first == again == []
    brokers.run(2.0)
    assert [answer.ext for answer in first if answer] == [answer.ext for answer in again if answer] != []
    assert delayed.truth.happened["delayed message stored"] == 1
