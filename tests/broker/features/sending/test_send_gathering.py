"""Gathering of sends into units while others are on their way to a majority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.features.sending.native_sends import NativeSendUnit
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_GATHERED_BYTES
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.features.sending.unit import SendUnit
from dledger_remoting.codes import ResponseCode


class Majority:
    """Keeps what is staged from being committed until told."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[int] = []
        """How many requests each staged unit had."""
        node = broker.memory.node
        self._commit: Callable[[], None] = node.commit
        stage: Callable[..., int] = node.stage

        def counted(*arguments: Any, context: object = None, **keywords: Any) -> int:
            position = stage(*arguments, context=context, **keywords)
            if isinstance(context, SendUnit | NativeSendUnit):
                self.units.append(context.requests)
            return position

        monkeypatch.setattr(node, "stage", counted)
        monkeypatch.setattr(node, "commit", lambda: None)

    def has_it(self) -> None:
        self._commit()


@pytest.fixture
def majority(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Majority:
    return Majority(broker, monkeypatch)


def send(broker: ServedBroker, client: FakeClient, count: int, body: bytes = b"x") -> list[int]:
    """Sends of one turn; returns their opaques."""
    opaques = [client.send(310, send_ext("T1"), body) for _ in range(count)]
    broker.settle()
    return opaques


def test_what_comes_while_nothing_is_on_its_way_is_staged_at_once(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    for _ in range(3):
        send(broker, client, 1)
        majority.has_it()
        broker.settle()
    assert majority.units == [1, 1, 1]
    assert len(client.answers) == 3


def test_sends_gather_until_they_are_half_as_many_as_those_on_their_way(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(broker, client, 8)
    for _ in range(3):
        send(broker, client, 1)
    assert majority.units == [8]
    send(broker, client, 1)
    assert majority.units == [8, 4]
    send(broker, client, 5)
    assert majority.units == [8, 4]
    majority.has_it()
    broker.settle()
    assert [answer.ext["queueOffset"] for answer in client.answers] == [str(offset) for offset in range(12)]


def test_what_gathered_is_staged_when_what_was_on_its_way_is_stored(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(broker, client, 8)
    (opaque,) = send(broker, client, 1)
    majority.has_it()
    broker.settle()
    assert majority.units == [8, 1]
    majority.has_it()
    broker.settle()
    assert client.answered(opaque).ext["queueOffset"] == "8"


def test_no_send_waits_long_for_others(broker: ServedBroker, client: FakeClient, majority: Majority) -> None:
    send(broker, client, 8)
    send(broker, client, 1)
    broker.advance(MAX_GATHER_S / 2)
    send(broker, client, 1)
    assert majority.units == [8]
    broker.advance(MAX_GATHER_S / 2)
    assert majority.units == [8, 2]
    send(broker, client, 1)
    broker.advance(MAX_GATHER_S / 2)
    assert majority.units == [8, 2], "the time begins anew with the next unit"
    broker.advance(MAX_GATHER_S / 2)
    assert majority.units == [8, 2, 1]


def test_many_bytes_do_not_wait_for_others(broker: ServedBroker, client: FakeClient, majority: Majority) -> None:
    send(broker, client, 8)
    send(broker, client, 1, bytes(MAX_GATHERED_BYTES // 2))
    assert majority.units == [8]
    send(broker, client, 1, bytes(MAX_GATHERED_BYTES // 2))
    assert majority.units == [8, 2]


def test_what_no_majority_takes_holds_nothing_back_once_it_was_given_up(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(broker, client, 8)
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 1)
    assert len(client.answers) == 8
    send(broker, client, 1)
    assert majority.units == [8, 1]


def test_what_gathers_when_leadership_is_lost_is_neither_stored_nor_of_unknown_outcome(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    sent = send(broker, client, 8)
    (waiting,) = send(broker, client, 1)
    broker.memory.node.step_down()
    broker.settle()
    assert {client.answered(opaque).ext["outcome"] for opaque in sent} == {"unknown"}
    broker.memory.node.lead()
    broker.advance(MAX_GATHER_S)
    majority.has_it()
    broker.settle()
    assert client.answered(waiting).ext["queueOffset"] == "0"


def test_what_gathers_when_the_node_stops_is_answered(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    opaques = [*send(broker, client, 8), *send(broker, client, 1)]
    broker.service.parts[SendRequests].close()
    broker.advance(1)
    assert all(client.has_answer(opaque) for opaque in opaques)


def test_the_time_begins_anew_where_what_gathered_was_staged_before_it_had_passed(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(broker, client, 8)
    send(broker, client, 1)
    broker.advance(MAX_GATHER_S / 2)
    majority.has_it()
    broker.settle()
    send(broker, client, 7)
    send(broker, client, 1)
    broker.advance(MAX_GATHER_S * 0.7)
    assert majority.units == [8, 1, 7]
    broker.advance(MAX_GATHER_S * 0.3)
    assert majority.units == [8, 1, 7, 1]


def test_what_gathers_when_a_node_that_leads_no_more_stops_is_answered(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    send(broker, client, 8)
    (waiting,) = send(broker, client, 1)
    broker.memory.node.step_down()
    broker.service.forwarder.close()
    broker.service.parts[SendRequests].close()
    broker.advance(1)
    assert client.answered(waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "outcome" not in client.answered(waiting).ext
