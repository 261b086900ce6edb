"""Pins that are made, renewed and given up, and changes of them that cross one another."""

from __future__ import annotations

from served_broker import FakeClient, ServedBroker

from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.pins.table import PINS
from dledger_remoting.codes import ResponseCode


def founded(broker: ServedBroker) -> FakeClient:
    GroupSettings(broker.memory.machine, broker.memory.env, broker.config)
    broker.settle()
    return broker.client()


def test_a_renewal_does_not_bring_back_a_pin_that_is_being_given_up(broker: ServedBroker) -> None:
    client = founded(broker)
    assert client.call(20013, {"name": "job", "position": "0", "leaseMillis": "60000"}).code == 0
    broker.advance(30)
    client.send(20014, {"name": "job"})
    client.call_from_disk(20011, {"start": "0", "end": "0", "roles": "leader", "pin": "job"})
    assert list(broker.memory.machine.state.table(PINS)) == []


def test_a_pin_behind_which_it_is_given_up_at_once_is_gone(broker: ServedBroker) -> None:
    client = founded(broker)
    client.send(20013, {"name": "job", "position": "0", "leaseMillis": "60000"})
    release = client.send(20014, {"name": "job"})
    broker.settle()
    assert client.answered(release).code == 0
    assert list(broker.memory.machine.state.table(PINS)) == []


def test_a_pin_is_given_up_only_when_every_member_understands_it(broker: ServedBroker):
    client = founded(broker)
    client.send_message("T1")
    assert client.call(20013, {"name": "job", "position": "0"}).code == ResponseCode.SUCCESS
    features = dict(broker.memory.machine.state.members.kinds)
    broker.memory.machine.state.members.kinds.clear()
    for number, fields in ((20013, {"name": "job", "position": "0"}), (20014, {"name": "job"})):
        answer = client.call(number, fields)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "understand" in (answer.remark or "")
    broker.memory.machine.state.members.kinds.update(features)
    assert client.call(20014, {"name": "job"}).code == ResponseCode.SUCCESS
