"""Order of sends that quotas hold: those of one account to one topic are stored as they came, whatever frees them."""

from __future__ import annotations

import json
from typing import Final

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.features.quotas.admission import HOLD_S, MAX_HELD, TICK_S
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S
from dledger_broker.kernel.rights import Action
from dledger_remoting.signatures import Credentials, signed
from tests.broker.features.accounts.guarded_broker import ROOT_CREDENTIALS, allow, call, guarded_broker, make_account
from tests.broker.features.quotas.quota_calls import BUSY, PUT, codes, put, send_many

DUE: Final = "TIMER_DELIVER_MS\x011\x02"
"""Properties of a delayed message whose time has come."""


class SlowMajority:
    """Stores nothing until it is told to: meanwhile a single send gathers with others for a millisecond."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self._commit = broker.memory.node.commit
        monkeypatch.setattr(broker.memory.node, "commit", lambda: None)

    def has_it(self) -> None:
        self._commit()
        self._broker.settle()


def offsets(client: FakeClient, opaques: list[int]) -> list[int]:
    """Where sends to one queue were stored."""
    return [int(client.answered(opaque).ext["queueOffset"]) for opaque in opaques]


def test_a_send_that_gathers_while_there_is_room_again_goes_behind_those_that_wait(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "topic", "T1", messages=100)
    majority = SlowMajority(client.broker, monkeypatch)
    sends = send_many(client, 101)
    client.broker.advance(TICK_S - MAX_GATHER_S / 2)
    sends += send_many(client, 1)
    client.broker.advance(TICK_S)
    majority.has_it()
    assert offsets(client, sends) == list(range(102))


def test_a_send_that_gathers_when_its_node_stops_goes_behind_those_that_wait(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "topic", "T1", messages=100)
    majority = SlowMajority(client.broker, monkeypatch)
    sends = send_many(client, 101)
    client.broker.memory.env._now += 2 * TICK_S  # there is room for more, and no timer has run
    sends += send_many(client, 1)
    client.broker.service.release()
    client.broker.settle()
    client.broker.advance(MAX_GATHER_S)
    majority.has_it()
    assert offsets(client, sends) == list(range(102))


def test_a_send_that_comes_when_a_quota_was_taken_back_goes_behind_those_that_wait(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    sends = send_many(client, 1 + MAX_HELD)
    put(client, "topic", "T1")
    sends += send_many(client, 2)
    assert offsets(client, sends) == list(range(MAX_HELD + 3))
    assert codes(client, send_many(client, 3)) == [0] * 3


def test_a_delayed_message_that_is_due_goes_behind_what_came_before_it(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=2)
    send_many(client, 1)
    sends = [client.send(310, send_ext("T1", properties=properties), b"x") for properties in ("", "", DUE)]
    client.broker.advance(HOLD_S + 2 * TICK_S)
    assert offsets(client, sends) == [1, 2, 3]


def _limit(client: FakeClient, kind: str, name: str, messages: int) -> None:
    body = json.dumps({"kind": kind, "name": name, "messagesPerSecond": messages}).encode()
    assert call(client, ROOT_CREDENTIALS, PUT, {}, body).code == 0


def _send(client: FakeClient, who: Credentials, topic: str, count: int) -> list[int]:
    opaques = [client.send(310, signed(send_ext(topic), b"x", who), b"x") for _ in range(count)]
    client.broker.settle()
    return opaques


@pytest.fixture
def guarded() -> FakeClient:
    """A client of ann's; 5 messages a second may come from her, 10 to T1, and these 10 have come from bob."""
    broker = guarded_broker()
    client, other = broker.client("ann/1"), broker.client("bob/1")
    for name in ("ann", "bob"):
        make_account(broker, name)
        allow(broker, name, "Topic:*", Action.PUB)
    _limit(other, "topic", "T1", 10)
    _limit(other, "account", "ann", 5)
    bob = Credentials("bob", "secret-of-bob")
    assert codes(other, _send(other, bob, "T1", 10)) == [0] * 10
    return client


ANN = Credentials("ann", "secret-of-ann")


def test_a_send_that_waits_for_its_other_quota_next_goes_before_those_that_came_later(guarded: FakeClient) -> None:
    sends = _send(guarded, ANN, "T1", 1)  # waits for T1
    _send(guarded, ANN, "T2", 5)
    sends += _send(guarded, ANN, "T1", 2)  # wait for ann
    guarded.broker.advance(0.9)
    assert offsets(guarded, sends) == [10, 11, 12]


def test_a_send_that_waits_for_both_its_quotas_is_held_once(guarded: FakeClient) -> None:
    _send(guarded, ANN, "T1", 1)
    _send(guarded, ANN, "T2", 5)
    guarded.broker.advance(0.9)
    held = {
        labels: number
        for part in guarded.broker.service.parts
        for gauge in part.labelled_gauges
        if gauge.name == "quota_held"
        for labels, number in gauge.read()
    }
    assert held == {("topic", "T1"): 1, ("account", "ann"): 0}


def test_no_more_wait_for_a_quota_than_may_though_they_have_waited_for_another(guarded: FakeClient) -> None:
    moved = _send(guarded, ANN, "T1", 1)
    _send(guarded, ANN, "T2", 5 + MAX_HELD)
    guarded.broker.advance(0.15)
    assert codes(guarded, moved) == [BUSY]
