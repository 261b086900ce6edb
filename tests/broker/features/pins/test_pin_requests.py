"""Pins that are made, renewed and given up, also by changes that cross each other."""

import pytest
from served_broker import FakeClient, ServedBroker

from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.pins.table import PINS
from dledger_remoting.codes import ResponseCode

PIN, UNPIN = 20013, 20014
JOB = {"name": "job", "position": "0", "leaseMillis": "60000"}


@pytest.fixture(autouse=True)
def founded(broker: ServedBroker) -> None:
    """Have the group founded, so that its members understand each other's commands."""
    broker.memory.machine.events.add(GroupSettings(broker.memory.machine, broker.memory.env, broker.config))
    broker.settle()


def test_a_renewal_does_not_bring_back_a_pin_that_is_being_given_up(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(PIN, JOB).code == 0
    broker.advance(30)
    client.send(UNPIN, {"name": "job"})
    client.call_from_disk(20011, {"start": "0", "end": "0", "roles": "leader", "pin": "job"})
    assert list(broker.table(PINS)) == []


def test_a_pin_released_right_behind_its_request_is_gone(broker: ServedBroker, client: FakeClient) -> None:
    client.send(PIN, JOB)
    release = client.send(UNPIN, {"name": "job"})
    broker.settle()
    assert client.answered(release).code == 0
    assert list(broker.table(PINS)) == []


def test_pin_requests_are_refused_until_every_member_understands_the_commands(client: FakeClient) -> None:
    assert client.call(PIN, JOB).code == ResponseCode.SUCCESS
    kinds = client.broker.memory.machine.state.members.kinds
    understood = dict(kinds)
    kinds.clear()
    for code in (PIN, UNPIN):
        answer = client.call(code, JOB)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "understand" in (answer.remark or "")
    kinds.update(understood)
    assert client.call(UNPIN, {"name": "job"}).code == ResponseCode.SUCCESS
