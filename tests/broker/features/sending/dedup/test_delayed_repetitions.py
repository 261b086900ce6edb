"""Idempotent sends with a delay or beyond a quota: a repetition gets the first answer, and is not stored again."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger_broker.features.delay.table import TIMERS
from dledger_broker.features.quotas.gate import HOLD_S, TICK_S
from dledger_broker.testing.environment import START_MS
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import TIMER_DELAY_MS
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TIMEOUT_S, TOPIC
from tests.broker.features.delay.delayed_brokers import Delayed
from tests.broker.features.delay.test_moved_messages import trim
from tests.broker.features.quotas.quota_calls import BUSY, codes, put, stored, told
from tests.broker.features.sending.dedup.remembering import keyed, remembering


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker that leads, has topic T1, and remembers sends."""
    return remembering(make_broker())


def send(broker: ServedBroker, asks: str, body: bytes = b"later", **fields: str) -> RemotingCommand:
    sent = {"idempotent": "true", **fields}
    answer = broker.client().send_message("T1", body, properties=keyed("K1") + asks, **sent)
    assert answer.code == 0, answer.remark
    return answer


def repetition_of(first: RemotingCommand | Answer) -> dict[str, str]:
    return {**first.ext, "repeated": "true"}


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
def test_a_repeated_delayed_send_gets_the_first_answer_and_waits_once(
    broker: ServedBroker, asks: str, topic: str
) -> None:
    first = send(broker, asks, e="2")
    broker.advance(1.0)
    again = send(broker, asks, e="1", g="1700000009999")
    assert again.ext == repetition_of(first)
    assert (first.ext["remembered"], again.ext["queueId"]) == ("true", "2")
    assert ("recallHandle" in again.ext) is (topic == TIMER_TOPIC)
    assert (pending(broker), broker.counters.idempotent_repeats) == (1, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"body": b"other"}),
        ({}, {"asks": "TIMER_DELAY_MS\x0160001\x02"}),
        ({}, {"h": "7"}),
        ({"idempotent": "false"}, {"idempotent": "false"}),
    ],
)
def test_a_send_that_differs_or_has_no_opt_in_is_no_repetition(broker: ServedBroker, first: dict, second: dict) -> None:
    for fields in (first, second):
        send(broker, **{"asks": "TIMER_DELAY_MS\x0160000\x02", **fields})
    assert pending(broker) == 2


@pytest.mark.parametrize(("delay_ms", "stored"), [(2_000, []), (-1, [b"later"])])
def test_a_repetition_behind_the_due_time_is_known(broker: ServedBroker, delay_ms: int, stored: list[bytes]) -> None:
    """As a new send, it would be stored at once, because its time has come."""
    asks = f"TIMER_DELIVER_MS\x01{START_MS + delay_ms}\x02"
    first = send(broker, asks)
    broker.advance(5.0)
    assert send(broker, asks).ext == repetition_of(first)
    assert broker.memory.bodies("T1") == stored


def test_a_repetition_is_recognized_at_the_limit_of_pending_messages(make_broker: MakeBroker) -> None:
    broker = remembering(make_broker(max_pending_timers=1))
    first = send(broker, "DELAY\x013\x02")
    assert send(broker, "DELAY\x013\x02").ext == repetition_of(first)


# ---------------------------------------------------------------- groups


def ask(delayed: Delayed, name: str, delay_ms: int = 8_000) -> list[Answer | None]:
    """Send the same message again to a node, and return the list that receives the answer."""
    code, ext, _ = delayed.brokers.workload.make_send(TOPIC, 0, [1], batch=False)
    ext |= {"i": f"{keyed('K1')}{TIMER_DELAY_MS}\x01{delay_ms}\x02", "idempotent": "true"}
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
        [answer and (0, repetition_of(answer)) for answer in first]
    ] * 2
    assert delayed.truth.happened["delayed message stored"] == 1
    brokers.run(6.0)
    assert delayed.truth.happened["delayed message delivered"] == 1


def test_a_repetition_is_recognized_after_the_delayed_message_was_moved() -> None:
    """The record that the group remembers was trimmed, and another record waits."""
    delayed = Delayed()
    brokers = delayed.brokers
    first = ask(delayed, brokers.leader, 60_000)
    delayed.fill_log()
    for _ in range(2):
        trim(delayed)
        brokers.run(3.0)
        assert delayed.truth.happened["row moved"] == 1
    again = ask(delayed, brokers.follower, 60_000)
    brokers.run(1.0)
    answers = [answer for answer in (*first, *again) if answer]
    assert [answer.code for answer in answers] == [0, 0]
    assert answers[0].ext["msgId"] < answers[1].ext["msgId"]
    assert answers[0].ext["recallHandle"] == answers[1].ext["recallHandle"]
    assert [table.total.rows for table in delayed.tables()] == [1, 1, 1]


def test_a_repetition_of_a_delayed_send_in_flight_waits_for_the_outcome() -> None:
    """The first attempt is in flight to slow followers, and is repeated through another node."""
    delayed = Delayed()
    brokers = delayed.brokers
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, 0.2)
    first, again = ask(delayed, brokers.leader), ask(delayed, brokers.follower)
    brokers.run(0.1)
    assert first == again == []
    brokers.run(2.0)
    assert [repetition_of(answer) for answer in first if answer] == [answer.ext for answer in again if answer] != []
    assert delayed.truth.happened["delayed message stored"] == 1


# ---- beyond a quota


@pytest.fixture
def limited(broker: ServedBroker) -> FakeClient:
    """Return a client of a broker that remembers sends and takes one message a second for T1."""
    client = remembering(broker).client()
    put(client, "topic", "T1", messages=1)
    return client


def start(client: FakeClient, key: str, asks: str = "") -> int:
    return client.send(310, send_ext("T1", properties=keyed(key) + asks, idempotent="true"), b"x")


def test_a_repetition_gets_the_first_answer_even_if_the_quota_is_used_up(limited: FakeClient) -> None:
    first = start(limited, "K1")
    limited.broker.settle()
    again = start(limited, "K1")
    limited.broker.settle()
    assert limited.answered(again).ext["queueOffset"] == limited.answered(first).ext["queueOffset"]
    assert (stored(limited.broker), told(limited)) == (1, {"topic T1": (0, 0)})


def test_a_repetition_of_a_held_send_waits_and_uses_the_quota_once(limited: FakeClient) -> None:
    opaques = [start(limited, key) for key in ("K1", "K2", "K2")]
    limited.broker.advance(HOLD_S + 2 * TICK_S)
    assert stored(limited.broker) == 2
    assert codes(limited, opaques) == [0, 0, BUSY]
    assert "this request stored nothing" in (limited.answered(opaques[2]).remark or "")


def test_a_new_idempotent_send_counts_toward_the_quota(limited: FakeClient) -> None:
    opaques = [start(limited, f"K{number}") for number in range(4)]
    limited.broker.settle()
    assert codes(limited, opaques) == [0]
    limited.broker.advance(2 * HOLD_S)
    assert codes(limited, opaques) == [0, 0, BUSY, BUSY]


@pytest.mark.parametrize("settles", [True, False])
def test_a_repetition_of_a_delayed_message_is_answered_as_the_first_was(limited: FakeClient, settles: bool) -> None:
    """This also holds for a first send of the same turn, whether that is staged or not."""
    first = start(limited, "K1", "DELAY\x013\x02")
    if settles:
        limited.broker.settle()
    again = start(limited, "K1", "DELAY\x013\x02")
    another = start(limited, "K2", "DELAY\x013\x02")
    limited.broker.advance(HOLD_S / 2)
    assert codes(limited, [first, again, another]) == [0, 0]
    assert limited.answered(again).ext["queueOffset"] == limited.answered(first).ext["queueOffset"]
    assert told(limited) == {"topic T1": (1, 0)}
