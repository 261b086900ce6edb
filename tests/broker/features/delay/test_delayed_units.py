"""Delayed sends of one turn are one unit; they gather while others are under way, and each is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.errors import TooLargeError
from dledger.format import iter_commands
from dledger_broker.features.delay.commands import ADD_KIND, ROW
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S
from dledger_remoting.codes import ResponseCode
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.topics import SCHEDULE_TOPIC

ASKS = "DELAY\x0118\x02"


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """A broker that leads, has topic T1, and remembers idempotent sends; the topic where messages wait is there."""
    broker = make_broker(max_pending_timers=20)
    config = replace(broker.config, idempotent_window_ms=10_000, max_idempotent_keys=100)
    GroupSettings(broker.memory.machine, broker.memory.env, config)
    broker.settle()
    assert broker.client().send_message("T1", b"first", i=ASKS).code == 0
    return broker


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


class Majority:
    """Keeps what is staged from being committed until told; `units`: how many messages begin to wait in each unit."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[int] = []
        self.takes = 1 << 20
        node = broker.memory.node
        self.has_it: Callable[[], None] = node.commit
        stage: Callable[..., int] = node.stage

        def counted(size: int, *arguments: Any, commands: bytes = b"", **keywords: Any) -> int:
            if size > self.takes:
                raise TooLargeError(f"{size} bytes are more than {self.takes}")
            position = stage(size, *arguments, commands=commands, **keywords)
            self.units += [len(payload) // ROW.size for kind, payload in iter_commands(commands) if kind == ADD_KIND]
            return position

        monkeypatch.setattr(node, "stage", counted)
        monkeypatch.setattr(node, "commit", lambda: None)


@pytest.fixture
def majority(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Majority:
    return Majority(broker, monkeypatch)


def send(client: FakeClient, count: int, *keys: str, queue_id: int = 1) -> list[int]:
    """Delayed messages of one turn, idempotent ones if they have keys; returns their opaques."""
    names = keys or [""] * count
    opaques = []
    for name in names:
        properties = ASKS + (f"UNIQ_KEY\x01{name}\x02" if name else "")
        opaques.append(client.send(310, send_ext("T1", queue_id, properties, idempotent="true"), b"later"))
    client.broker.settle()
    return opaques


def pending(broker: ServedBroker) -> int:
    return broker.memory.machine.state.table(TIMERS).total.rows


def test_delayed_sends_of_one_turn_are_one_unit_in_which_each_has_its_place(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    other = broker.client("client/2")
    first = client.send(310, send_ext("T1", 1, ASKS), b"1")
    second = other.send(310, send_ext("T1", 2, "TIMER_DELAY_MS\x0160000\x02"), b"2" * 50)
    third = client.send(310, send_ext("T1", 3, ASKS), b"3")
    broker.settle()
    assert not client.answers
    majority.has_it()  # the topic of timers is made
    broker.settle()
    majority.has_it()
    broker.settle()
    answers = [client.answered(first), other.answered(second), client.answered(third)]
    assert majority.units == [2, 1]
    assert [answer.ext["queueId"] for answer in answers] == ["1", "2", "3"]
    assert ["recallHandle" in answer.ext for answer in answers] == [False, True, False]
    for answer, body in zip(answers, (b"1", b"2" * 50, b"3"), strict=True):
        found = broker.memory.run(
            broker.memory.machine.lookup.record_at(parse_offset_message_id(answer.ext["msgId"])[1])
        )
        assert found is not None
        assert (found[1].body, str(found[1].queue_offset)) == (body, answer.ext["queueOffset"])
    assert pending(broker) == 4


def test_delayed_sends_gather_while_others_are_on_their_way_and_none_waits_long(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(client, 8)
    for _ in range(3):
        send(client, 1)
    assert majority.units == [8]
    broker.advance(MAX_GATHER_S)
    assert majority.units == [8, 3]


def test_of_more_than_may_wait_those_that_fit_are_stored(broker: ServedBroker, client: FakeClient) -> None:
    send(client, 15)
    codes = [client.answered(opaque).code for opaque in send(client, 6)]
    assert codes == [0] * 4 + [ResponseCode.SYSTEM_ERROR] * 2
    assert pending(broker) == 20


def test_sends_that_are_too_large_for_one_unit_are_one_each(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    majority.takes = 500
    opaques = send(client, 3)
    assert majority.units == [1, 1, 1]
    majority.has_it()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 0]


def test_repetitions_are_known_in_the_turn_of_the_first_one_and_later_whatever_their_place_in_the_unit(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    """Records that wait are larger than what was sent: those behind the first one are not where a send would be."""
    keys = [f"A000{number:X}" for number in range(6)] + ["Z9", "B0001"]
    first = send(client, 0, *keys)
    again = send(client, 0, "Z9", "A0003")
    assert majority.units == [8]
    majority.has_it()
    broker.advance(1.0)
    places = [client.answered(opaque).ext for opaque in first]
    assert [client.answered(opaque).ext for opaque in again] == [places[6], places[3]]
    later = send(client, 0, *reversed(keys))
    assert [client.answered(opaque).ext for opaque in later] == places[::-1]
    assert pending(broker) == 9
    assert len(broker.memory.bodies(SCHEDULE_TOPIC, 17)) == 9


def test_no_majority_leaves_the_outcome_of_all_open(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    opaques = send(client, 3)
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 0.2)
    answers = [client.answered(opaque) for opaque in opaques]
    assert [answer.ext.get("outcome") for answer in answers] == ["unknown"] * 3
    majority.has_it()
    broker.settle()
    assert [answer.ext.get("outcome") for answer in client.answers] == ["unknown"] * 3
    assert pending(broker) == 4


def test_what_a_full_disk_drops_waits_for_nothing_and_can_be_sent_again(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    opaques = send(client, 0, "K1", "K2")
    broker.memory.node.drop_staged()
    answers = [client.answered(opaque) for opaque in opaques]
    assert [(answer.code, answer.ext.get("outcome")) for answer in answers] == [
        (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    ] * 2
    again = send(client, 0, "K1", "K2")
    majority.has_it()
    broker.settle()
    assert [client.answered(opaque).code for opaque in again] == [0, 0]
    assert pending(broker) == 3
