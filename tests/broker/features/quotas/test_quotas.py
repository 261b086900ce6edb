"""Quotas: a send beyond a quota waits for at most a second and is then refused, and no other client notices."""

from __future__ import annotations

import json
from typing import Final

import pytest
from served_broker import FakeClient, MakeBroker, send_ext

from dledger_broker.features import FEATURES
from dledger_broker.features.quotas.gate import HOLD_S, MAX_AGE_S, MAX_HELD, MAX_HELD_BYTES, TICK_S
from dledger_broker.features.quotas.requests import MAX_QUOTAS
from dledger_broker.features.quotas.table import QUOTAS, PutQuota
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.record import SYS_TRANSACTION_PREPARED
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.topics import HALF_TOPIC
from tests.broker.features.accounts.guarded_broker import call as call_as
from tests.broker.features.accounts.guarded_broker import credentials
from tests.broker.features.quotas.quota_calls import (
    BUSY,
    PUT,
    codes,
    forwarded,
    gauges,
    limit,
    put,
    send_many,
    stored,
    told,
    with_accounts,
)
from tests.broker.features.sending.majority import Majority
from tests.broker.kernel.applied_commands import apply


def test_sends_above_a_quota_wait_for_refill_and_are_refused_after_a_second(client: FakeClient) -> None:
    assert put(client, "topic", "T1", messages=10) == 0
    sends = send_many(client, 25)
    assert (codes(client, sends), stored(client.broker)) == ([0] * 10, 10)
    client.broker.advance(HOLD_S / 2 + TICK_S)
    assert stored(client.broker) == 15
    client.broker.advance(HOLD_S)
    answers = [client.answered(opaque) for opaque in sends]
    assert [answer.code for answer in answers] == [0] * 20 + [BUSY] * 5
    assert stored(client.broker) == 20
    assert answers[-1].remark == (
        "the quota of topic T1, 10 messages/s, is used up: this request stored nothing, send again later, and more"
        " slowly"
    )
    assert told(client) == {"topic T1": (15, 5)}


def test_a_held_send_is_not_overtaken_by_a_later_send_after_a_refill(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=10)
    send_many(client, 11)
    client.broker.memory.env._now += 0.15  # there is room for one, and no timer has run
    (late,) = send_many(client, 1)
    assert not client.has_answer(late)
    client.broker.advance(HOLD_S)
    assert client.answered(late).ext["queueOffset"] == "11"


def test_a_byte_quota_lets_one_message_above_the_rate_through(client: FakeClient) -> None:
    put(client, "topic", "T1", size=2_000)
    assert codes(client, send_many(client, 1, body=bytes(5_000))) == [0]
    small = send_many(client, 1)
    client.broker.advance(HOLD_S + TICK_S)
    assert "2000 bytes/s" in (client.answered(small[0]).remark or "")
    client.broker.advance(1.0)
    assert codes(client, send_many(client, 1)) == [0]


def test_a_quota_in_use_delays_and_refuses_no_sends_of_other_topics(make_broker: MakeBroker) -> None:
    broker = make_broker(topics=("T1", "T2", "T3"))
    noisy, neighbour = broker.client("noisy/1"), broker.client("neighbour/1")
    put(noisy, "topic", "T1", messages=5)
    put(noisy, "topic", "T2", messages=50)
    for _ in range(20):
        send_many(noisy, MAX_HELD * 2)
        for topic in ("T2", "T3"):
            assert codes(neighbour, send_many(neighbour, 1, topic)) == [0]
        broker.advance(0.05)
    held, refused = told(noisy)["topic T1"]
    assert (held >= MAX_HELD, refused > MAX_HELD, told(noisy)["topic T2"]) == (True, True, (0, 0))


@pytest.mark.parametrize(
    ("body", "expected"), [(b"x", MAX_HELD), (bytes(1 << 19), MAX_HELD_BYTES // (1 << 19))], ids=["sends", "bytes"]
)
def test_sends_beyond_the_limits_of_held_sends_and_bytes_are_refused_at_once(
    client: FakeClient, body: bytes, expected: int
) -> None:
    put(client, "topic", "T1", messages=1)
    sends = send_many(client, 1 + expected + 3, body=body)
    assert codes(client, sends) == [0, BUSY, BUSY, BUSY]


def test_a_batch_counts_with_all_its_messages_toward_a_quota(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=10)
    message = (18 + 2 + 4).to_bytes(4, "big") + bytes(12) + (2).to_bytes(4, "big") + b"ab" + bytes(2)
    assert client.call(320, send_ext("T1", m="true"), message * 15).code == 0
    opaque = client.send(310, send_ext("T1"), b"x")
    client.broker.advance(0.5)
    assert not client.has_answer(opaque)
    client.broker.advance(0.2)
    assert client.answered(opaque).code == 0


@pytest.mark.parametrize(
    "letters",
    [{"i": "DELAY\x013\x02"}, {"f": str(SYS_TRANSACTION_PREPARED), "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"}],
)
def test_delayed_and_transactional_messages_count_once(client: FakeClient, letters: dict[str, str]) -> None:
    client.broker.memory.create_topic(HALF_TOPIC)
    put(client, "topic", "T1", messages=10)
    sends = send_many(client, 12, **letters)
    assert codes(client, sends) == [0] * 10
    client.broker.advance(0.25)
    assert codes(client, sends) == [0] * 12
    assert told(client) == {"topic T1": (2, 0)}


@pytest.mark.parametrize("messages", [0, 1_000], ids=["deleted", "raised"])
def test_a_raised_or_deleted_quota_releases_its_held_sends(client: FakeClient, messages: int) -> None:
    put(client, "topic", "T1", messages=1)
    held = send_many(client, 3)[1:]
    assert put(client, "topic", "T1", messages=messages) == 0
    client.broker.advance(2 * TICK_S if messages else TICK_S)
    assert codes(client, held) == [0, 0]


def test_a_send_that_waited_at_another_node_is_refused_before_its_client_gives_up(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    send_many(client, 5)
    replies = forwarded(client, 310, send_ext("T1"), MAX_AGE_S - 0.5)
    client.broker.advance(0.5 - 2 * TICK_S)
    assert replies == []
    client.broker.advance(3 * TICK_S)
    (reply,) = replies
    assert b"this request stored nothing" in reply
    (reply,) = forwarded(client, 310, send_ext("T1"), MAX_AGE_S)
    assert b"this request stored nothing" in reply, "at once: this send is too old to wait"


def test_held_sends_of_a_deposed_leader_are_forwarded_and_charged_by_the_next_leader(client: FakeClient) -> None:
    broker = client.broker
    put(client, "topic", "T1", messages=2)
    held = send_many(client, 4)[2:]
    broker.memory.node.step_down()
    broker.settle()
    assert (codes(client, held), broker.service.forwarder.waiting) == ([], 2)
    broker.memory.node.lead()
    broker.advance(TICK_S)
    assert (codes(client, held), stored(broker)) == ([0, 0], 4)
    again = send_many(client, 1)
    assert not client.has_answer(again[0])


def test_a_stopping_node_answers_held_sends(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    sends = send_many(client, 3)
    client.broker.service.release()
    assert codes(client, sends + send_many(client, 1)) == [0, BUSY, BUSY, BUSY]


def test_an_account_quota_counts_over_all_topics_and_limits_no_other_account() -> None:
    broker, (ann, bob) = with_accounts("ann", "bob")
    client = broker.client()
    body = json.dumps({"kind": "account", "name": "ann", "messagesPerSecond": 2}).encode()
    assert call_as(client, ann, PUT, {}, body).code == 16
    limit(broker, "account", "ann", 2)
    assert [call_as(client, ann, 310, send_ext(topic), b"x").code for topic in ("T1", "T2")] == [0, 0]
    assert [call_as(client, bob, 310, send_ext("T1"), b"x").code for _ in range(5)] == [0] * 5
    with pytest.raises(AssertionError, match="0 answers"):
        call_as(client, ann, 310, send_ext("T1"), b"x")
    broker.advance(HOLD_S)
    assert stored(broker) == 7


def test_a_send_waits_for_both_its_quotas() -> None:
    broker, (ann,) = with_accounts("ann")
    client = broker.client()
    limit(broker, "account", "ann", 5)
    limit(broker, "topic", "T1", 1)
    for topic in ("T2", "T2", "T2", "T2", "T1"):
        assert call_as(client, ann, 310, send_ext(topic), b"x").code == 0
    with pytest.raises(AssertionError, match="0 answers"):
        call_as(client, ann, 310, send_ext("T1"), b"x")
    broker.advance(0.5)
    assert stored(broker, "T1") == 1  # the account might send again, but not to this topic
    broker.advance(0.6)
    assert stored(broker, "T1") == 2


def test_the_limit_of_a_thousand_quotas_holds_for_concurrent_requests(client: FakeClient) -> None:
    opaques = []
    for number in range(MAX_QUOTAS + 5):
        body = json.dumps({"kind": "topic", "name": f"T{number % (MAX_QUOTAS + 2)}", "messagesPerSecond": 1}).encode()
        opaques.append(client.send(PUT, body=body))
    client.broker.settle()
    # The last three are already set.
    assert codes(client, opaques) == [0] * MAX_QUOTAS + [client.answered(opaques[MAX_QUOTAS]).code] * 2 + [0] * 3
    assert client.answered(opaques[MAX_QUOTAS]).remark == "there are 1000 quotas, the limit is 1000: delete some"
    assert len(client.broker.memory.machine.state.table(QUOTAS)) == MAX_QUOTAS
    assert put(client, "topic", "absent") == 0
    assert put(client, "topic", "T0") == 0
    assert put(client, "topic", "another", messages=1) == 0


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        ({"kind": "host", "name": "a"}, "kind 'host': expected account, topic, account-reads, topic-reads"),
        ({"kind": "topic", "name": ""}, "name '': expected 1 to 128 characters"),
        ({"kind": "topic", "name": "a", "bytesPerSecond": -1}, "bytesPerSecond -1 is outside"),
    ],
)
def test_an_invalid_quota_is_refused(client: FakeClient, body: dict[str, object], remark: str) -> None:
    answer = client.call(PUT, body=json.dumps({"messagesPerSecond": 1, **body}).encode())
    assert answer.code != 0
    assert remark in (answer.remark or "")


def test_quotas_are_in_digest_and_snapshot_and_leave_no_trace_once_deleted() -> None:
    state = BrokerState(FEATURES)
    empty = state.digest()
    apply(state, PutQuota("topic", "T1", 5), PutQuota("account", "ann", 0, 7), PutQuota("topic", "T2", 1))
    apply(state, PutQuota("topic", "T1", 6), PutQuota("topic", "T2"))
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    assert restored.table(QUOTAS).rows() == [PutQuota("account", "ann", 0, 7), PutQuota("topic", "T1", 6)]
    assert restored.digest() == state.digest()
    apply(state, PutQuota("topic", "T1"))
    assert state.digest() != empty
    apply(state, PutQuota("account", "ann"))
    assert state.digest() == empty
    assert QUOTAS.make().capture_frames(0.0) == state.table(QUOTAS).capture_frames(0.0) == {}


# ---- order: sends of an account to a topic are stored in their order, whatever frees them


DUE: Final = "TIMER_DELIVER_MS\x011\x02"
"""Properties of a delayed message that is already due."""


def offsets(client: FakeClient, opaques: list[int]) -> list[int]:
    """Return the offsets at which sends to one queue were stored."""
    return [int(client.answered(opaque).ext["queueOffset"]) for opaque in opaques]


def test_a_gathered_send_stays_behind_held_sends_when_the_quota_refills(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "topic", "T1", messages=100)
    majority = Majority(client.broker, monkeypatch)
    sends = send_many(client, 101)
    client.broker.advance(TICK_S - MAX_GATHER_S / 2)
    sends += send_many(client, 1)
    client.broker.advance(TICK_S)
    majority.has_it()
    assert offsets(client, sends) == list(range(102))


def test_a_gathered_send_stays_behind_held_sends_when_the_node_stops(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "topic", "T1", messages=100)
    majority = Majority(client.broker, monkeypatch)
    sends = send_many(client, 101)
    client.broker.memory.env._now += 2 * TICK_S  # there is room for more, and no timer has run
    sends += send_many(client, 1)
    client.broker.service.release()
    client.broker.settle()
    client.broker.advance(MAX_GATHER_S)
    majority.has_it()
    assert offsets(client, sends) == list(range(102))


def test_a_new_send_stays_behind_held_sends_when_the_quota_is_removed(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    sends = send_many(client, 1 + MAX_HELD)
    put(client, "topic", "T1")
    sends += send_many(client, 2)
    assert offsets(client, sends) == list(range(MAX_HELD + 3))
    assert codes(client, send_many(client, 3)) == [0] * 3


def test_a_delayed_message_that_is_due_stays_behind_earlier_held_sends(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=2)
    send_many(client, 1)
    sends = [client.send(310, send_ext("T1", properties=properties), b"x") for properties in ("", "", DUE)]
    client.broker.advance(HOLD_S + 2 * TICK_S)
    assert offsets(client, sends) == [1, 2, 3]


def _send(client: FakeClient, who: Credentials, topic: str, count: int) -> list[int]:
    opaques = [client.send(310, signed(send_ext(topic), b"x", who), b"x") for _ in range(count)]
    client.broker.settle()
    return opaques


@pytest.fixture
def guarded() -> FakeClient:
    """Return a client of ann's. She may send 5 messages a second, and T1 takes 10, which bob has used."""
    broker, (_, bob) = with_accounts("ann", "bob")
    client, other = broker.client("ann/1"), broker.client("bob/1")
    limit(broker, "topic", "T1", 10)
    limit(broker, "account", "ann", 5)
    assert codes(other, _send(other, bob, "T1", 10)) == [0] * 10
    return client


ANN: Final = credentials("ann")


def test_a_send_that_moves_to_its_second_quota_stays_before_later_sends(guarded: FakeClient) -> None:
    sends = _send(guarded, ANN, "T1", 1)  # waits for T1's quota
    _send(guarded, ANN, "T2", 5)
    sends += _send(guarded, ANN, "T1", 2)  # wait for ann's quota
    guarded.broker.advance(0.9)
    assert offsets(guarded, sends) == [10, 11, 12]


def test_a_send_waiting_for_two_quotas_counts_as_held_once(guarded: FakeClient) -> None:
    _send(guarded, ANN, "T1", 1)
    _send(guarded, ANN, "T2", 5)
    guarded.broker.advance(0.9)
    held = {("quota_held", "topic", "T1"): 1, ("quota_held", "account", "ann"): 0}
    refused = {("quota_refused", "topic", "T1"): 0, ("quota_refused", "account", "ann"): 0}
    assert gauges(guarded.broker) == held | refused


def test_a_send_that_moves_to_a_full_second_quota_is_refused(guarded: FakeClient) -> None:
    moved = _send(guarded, ANN, "T1", 1)
    _send(guarded, ANN, "T2", 5 + MAX_HELD)
    guarded.broker.advance(0.15)
    assert codes(guarded, moved) == [BUSY]
