"""Repetitions beyond a quota: what is stored is told, and stored no second time; what is not counts as all else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.quotas.admission import HOLD_S, TICK_S
from tests.broker.features.quotas.quota_calls import BUSY, codes, put, stored, told


@pytest.fixture
def remembering(broker: ServedBroker) -> FakeClient:
    """A client of a broker that remembers sends; one message a second may be sent to T1."""
    config = replace(broker.config, idempotent_window_ms=10_000, max_idempotent_keys=1_000)
    GroupSettings(broker.memory.machine, broker.memory.env, config)
    broker.settle()
    client = broker.client()
    put(client, "topic", "T1", messages=1)
    return client


def send(client: FakeClient, key: str, asks: str = "") -> int:
    return client.send(310, send_ext("T1", properties=f"UNIQ_KEY\x01{key}\x02{asks}", idempotent="true"), b"x")


def test_a_repetition_is_answered_as_the_first_was_though_the_quota_is_used_up(remembering: FakeClient) -> None:
    first = send(remembering, "K1")
    remembering.broker.settle()
    again = send(remembering, "K1")
    remembering.broker.settle()
    assert remembering.answered(again).ext["queueOffset"] == remembering.answered(first).ext["queueOffset"]
    assert (stored(remembering.broker), told(remembering)) == (1, {"topic T1": (0, 0)})


def test_a_repetition_of_what_waits_waits_and_uses_the_quota_once(remembering: FakeClient) -> None:
    opaques = [send(remembering, key) for key in ("K1", "K2", "K2")]
    remembering.broker.advance(HOLD_S + 2 * TICK_S)
    assert stored(remembering.broker) == 2
    answers = codes(remembering, opaques)
    assert answers == [0, 0, BUSY]
    assert "this request stored nothing" in (remembering.answered(opaques[2]).remark or "")


def test_what_is_no_repetition_counts_though_it_opts_in(remembering: FakeClient) -> None:
    opaques = [send(remembering, f"K{number}") for number in range(4)]
    remembering.broker.settle()
    assert codes(remembering, opaques) == [0]
    remembering.broker.advance(2 * HOLD_S)
    assert codes(remembering, opaques) == [0, 0, BUSY, BUSY]


@pytest.mark.parametrize("settles", [True, False])
def test_a_repetition_of_a_delayed_message_is_answered_as_the_first_was(remembering: FakeClient, settles: bool) -> None:
    """Also of one that came in the same turn, whether that is staged or not."""
    first = send(remembering, "K1", "DELAY\x013\x02")
    if settles:
        remembering.broker.settle()
    again = send(remembering, "K1", "DELAY\x013\x02")
    another = send(remembering, "K2", "DELAY\x013\x02")
    remembering.broker.advance(HOLD_S / 2)
    assert codes(remembering, [first, again, another]) == [0, 0]
    assert remembering.answered(again).ext["queueOffset"] == remembering.answered(first).ext["queueOffset"]
    assert told(remembering) == {"topic T1": (1, 0)}
