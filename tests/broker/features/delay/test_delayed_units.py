"""Delayed sends of one turn are one unit. They gather while other units are in flight, and each is answered."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.errors import TooLargeError
from dledger.format import iter_commands
from dledger_broker.features.delay.commands import ADD_KIND, ROW
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S
from dledger_remoting.codes import ResponseCode
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.topics import SCHEDULE_TOPIC
from tests.broker.features.delay.delayed_brokers import pending

ASKS = "DELAY\x0118\x02"


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker that remembers idempotent sends, and in which the topic where messages wait exists."""
    broker = make_broker(max_pending_timers=20)
    config = replace(broker.config, idempotent_window_ms=10_000, max_idempotent_keys=100)
    broker.memory.machine.events.add(GroupSettings(broker.memory.machine, broker.memory.env, config))
    broker.settle()
    assert broker.client().send_message("T1", b"first", i=ASKS).code == 0
    return broker


class Majority:
    """Majority that commits nothing until told. `units` has the number of messages that begin to wait in each unit."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[int] = []
        self.takes = 1 << 20
        node = broker.memory.node
        commit: Callable[[], None] = node.commit
        stage: Callable[..., int] = node.stage

        def counted(size: int, *arguments: Any, commands: bytes = b"", **keywords: Any) -> int:
            if size > self.takes:
                raise TooLargeError(f"{size} bytes are more than {self.takes}")
            position = stage(size, *arguments, commands=commands, **keywords)
            self.units += [len(payload) // ROW.size for kind, payload in iter_commands(commands) if kind == ADD_KIND]
            return position

        def has_it() -> None:
            commit()
            broker.settle()

        self.has_it = has_it
        monkeypatch.setattr(node, "stage", counted)
        monkeypatch.setattr(node, "commit", lambda: None)


@pytest.fixture
def majority(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Majority:
    return Majority(broker, monkeypatch)


def send(client: FakeClient, *keys: str) -> list[int]:
    """Send delayed messages in one turn, idempotently if they have keys, and return their opaques."""
    properties = [ASKS + (f"UNIQ_KEY\x01{key}\x02" if key else "") for key in keys]
    opaques = [client.send(310, send_ext("T1", 1, text, idempotent="true"), b"later") for text in properties]
    client.broker.settle()
    return opaques


def send_many(client: FakeClient, count: int) -> list[int]:
    return send(client, *[""] * count)


def test_delayed_sends_of_one_turn_share_units_and_get_their_own_positions(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    other = broker.client("client/2")
    sent = [(client, ASKS, b"1"), (other, "TIMER_DELAY_MS\x0160000\x02", b"2" * 50), (client, ASKS, b"3")]
    opaques = [
        sender.send(310, send_ext("T1", number, asks), body) for number, (sender, asks, body) in enumerate(sent, 1)
    ]
    broker.settle()
    assert not client.answers
    majority.has_it()  # the topic of timers is made
    majority.has_it()
    answers = [sender.answered(opaque) for (sender, *_), opaque in zip(sent, opaques, strict=True)]
    assert majority.units == [2, 1]
    assert [answer.ext["queueId"] for answer in answers] == ["1", "2", "3"]
    assert ["recallHandle" in answer.ext for answer in answers] == [False, True, False]
    for answer, (*_, body) in zip(answers, sent, strict=True):
        position = parse_offset_message_id(answer.ext["msgId"])[1]
        found = broker.memory.run(broker.memory.machine.lookup.record_at(position))
        assert found is not None
        assert (found[1].body, str(found[1].queue_offset)) == (body, answer.ext["queueOffset"])
    assert pending(broker) == 4


def test_delayed_sends_gather_behind_sends_in_flight_up_to_a_time_limit(client: FakeClient, majority: Majority) -> None:
    send_many(client, 8)
    for _ in range(3):
        send_many(client, 1)
    assert majority.units == [8]
    client.broker.advance(MAX_GATHER_S)
    assert majority.units == [8, 3]


def test_delayed_sends_of_one_turn_are_stored_up_to_the_limit(client: FakeClient) -> None:
    send_many(client, 15)
    codes = [client.answered(opaque).code for opaque in send_many(client, 6)]
    assert codes == [0] * 4 + [ResponseCode.SYSTEM_ERROR] * 2
    assert pending(client.broker) == 20


def test_delayed_sends_too_large_for_one_unit_get_a_unit_each(client: FakeClient, majority: Majority) -> None:
    majority.takes = 500
    opaques = send_many(client, 3)
    assert majority.units == [1, 1, 1]
    majority.has_it()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 0]


def test_repetitions_of_delayed_sends_are_recognized_anywhere_in_a_unit(client: FakeClient, majority: Majority) -> None:
    """Records that wait are larger than what was sent, so they are not where records of sends would be."""
    keys = [f"A000{number:X}" for number in range(6)] + ["Z9", "B0001"]
    first, again = send(client, *keys), send(client, "Z9", "A0003")
    assert majority.units == [8]
    majority.has_it()
    client.broker.advance(1.0)
    told_again = [client.answered(opaque).ext | {"repeated": "true"} for opaque in first]
    assert [client.answered(opaque).ext for opaque in again] == [told_again[6], told_again[3]]
    later = send(client, *reversed(keys))
    assert [client.answered(opaque).ext for opaque in later] == told_again[::-1]
    assert pending(client.broker) == 9
    assert len(client.broker.memory.bodies(SCHEDULE_TOPIC, 17)) == 9


def test_delayed_sends_without_a_majority_have_an_unknown_outcome(client: FakeClient, majority: Majority) -> None:
    opaques = send_many(client, 3)
    client.broker.advance(client.broker.config.quorum_timeout_ms / 1000 + 0.2)
    assert [client.answered(opaque).ext.get("outcome") for opaque in opaques] == ["unknown"] * 3
    majority.has_it()
    assert [answer.ext.get("outcome") for answer in client.answers] == ["unknown"] * 3
    assert pending(client.broker) == 4


def test_delayed_sends_dropped_by_a_full_disk_are_answered_and_can_be_sent_again(
    client: FakeClient, majority: Majority
) -> None:
    opaques = send(client, "K1", "K2")
    client.broker.memory.node.drop_staged()
    answers = [client.answered(opaque) for opaque in opaques]
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert [answer.ext.get("outcome") for answer in answers] == [None] * 2
    again = send(client, "K1", "K2")
    majority.has_it()
    assert [client.answered(opaque).code for opaque in again] == [0, 0]
    assert pending(client.broker) == 3
