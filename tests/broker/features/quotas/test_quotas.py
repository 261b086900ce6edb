"""Quotas: what is beyond one waits for a second at most and is refused then, and nobody else notices."""

from __future__ import annotations

import json

import pytest
from served_broker import FakeClient, MakeBroker, send_ext

from dledger_broker.features import FEATURES
from dledger_broker.features.quotas.admission import HOLD_S, IN_ALL_S, MAX_HELD, MAX_HELD_BYTES, TICK_S
from dledger_broker.features.quotas.requests import MAX_QUOTAS
from dledger_broker.features.quotas.table import QUOTAS, PutQuota
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.record import SYS_TRANSACTION_PREPARED
from dledger_remoting.topics import HALF_TOPIC
from tests.broker.features.accounts.guarded_broker import ROOT_CREDENTIALS, allow, guarded_broker, make_account
from tests.broker.features.accounts.guarded_broker import call as call_as
from tests.broker.features.quotas.quota_calls import BUSY, PUT, codes, forwarded, put, send_many, stored, told
from tests.broker.kernel.applied_commands import apply


def test_what_is_beyond_a_quota_goes_on_as_it_fills_and_is_refused_after_a_second(client: FakeClient) -> None:
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


def test_a_send_that_waits_is_not_overtaken_by_one_that_comes_when_there_is_room_again(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=10)
    send_many(client, 11)
    client.broker.memory.env._now += 0.15  # there is room for one, and no timer has run
    late = client.send(310, send_ext("T1"), b"late")
    client.broker.settle()
    assert not client.has_answer(late)
    client.broker.advance(HOLD_S)
    assert client.answered(late).ext["queueOffset"] == "11"


def test_bytes_are_limited_and_one_larger_than_a_seconds_worth_goes_through(client: FakeClient) -> None:
    put(client, "topic", "T1", size=2_000)
    assert codes(client, send_many(client, 1, body=bytes(5_000))) == [0]
    small = send_many(client, 1)
    client.broker.advance(HOLD_S + TICK_S)
    assert "2000 bytes/s" in (client.answered(small[0]).remark or "")
    client.broker.advance(1.0)
    assert codes(client, send_many(client, 1)) == [0]


def test_a_neighbour_waits_for_nothing_and_is_refused_nothing(make_broker: MakeBroker) -> None:
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
    assert held >= MAX_HELD
    assert refused > MAX_HELD
    assert told(noisy)["topic T2"] == (0, 0)


@pytest.mark.parametrize(
    ("body", "expected"), [(b"x", MAX_HELD), (bytes(1 << 19), MAX_HELD_BYTES // (1 << 19))], ids=["sends", "bytes"]
)
def test_so_many_wait_and_one_more_is_refused_at_once(client: FakeClient, body: bytes, expected: int) -> None:
    put(client, "topic", "T1", messages=1)
    sends = send_many(client, 1 + expected + 3, body=body)
    assert codes(client, sends) == [0, BUSY, BUSY, BUSY]


def test_a_batch_counts_as_what_is_in_it(client: FakeClient) -> None:
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
def test_delayed_messages_and_those_of_transactions_count_once(client: FakeClient, letters: dict[str, str]) -> None:
    client.broker.memory.create_topic(HALF_TOPIC)
    put(client, "topic", "T1", messages=10)
    sends = send_many(client, 12, **letters)
    assert codes(client, sends) == [0] * 10
    client.broker.advance(0.25)
    assert codes(client, sends) == [0] * 12
    assert told(client) == {"topic T1": (2, 0)}


def test_a_quota_that_is_raised_or_deleted_lets_go_what_it_held(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    first, second = client.broker.client("a/1"), client.broker.client("b/1")
    held = send_many(first, 2)[1:]
    assert put(client, "topic", "T1") == 0
    client.broker.advance(TICK_S)
    assert codes(first, held) == [0]
    put(client, "topic", "T1", messages=1)
    held = send_many(second, 3)[1:]
    put(client, "topic", "T1", messages=1_000)
    client.broker.advance(2 * TICK_S)
    assert codes(second, held) == [0, 0]


def test_a_send_that_has_waited_elsewhere_is_refused_before_its_client_gives_up(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    send_many(client, 5)
    replies = forwarded(client, 310, send_ext("T1"), IN_ALL_S - 0.5)
    client.broker.advance(0.5 - 2 * TICK_S)
    assert replies == []
    client.broker.advance(3 * TICK_S)
    (reply,) = replies
    assert b"this request stored nothing" in reply


def test_a_send_that_is_too_old_to_wait_is_refused_at_once(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    send_many(client, 5)
    (reply,) = forwarded(client, 310, send_ext("T1"), IN_ALL_S)
    assert b"this request stored nothing" in reply


def test_held_sends_are_handed_on_by_who_leads_no_more_and_counted_by_the_next(client: FakeClient) -> None:
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


def test_a_node_that_stops_answers_what_it_holds(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    sends = send_many(client, 3)
    client.broker.service.release()
    client.broker.settle()
    assert codes(client, sends) == [0, BUSY, BUSY]
    assert codes(client, send_many(client, 1)) == [BUSY]


def test_an_account_is_limited_over_all_topics_and_others_are_not() -> None:
    broker = guarded_broker()
    client = broker.client()
    ann, bob = make_account(broker, "ann"), make_account(broker, "bob")
    for name in ("ann", "bob"):
        allow(broker, name, "Topic:*", Action.PUB)
    body = json.dumps({"kind": "account", "name": "ann", "messagesPerSecond": 2}).encode()
    assert call_as(client, ann, PUT, {}, body).code == 16
    assert call_as(client, ROOT_CREDENTIALS, PUT, {}, body).code == 0
    assert [call_as(client, ann, 310, send_ext(topic), b"x").code for topic in ("T1", "T2")] == [0, 0]
    assert [call_as(client, bob, 310, send_ext("T1"), b"x").code for _ in range(5)] == [0] * 5
    with pytest.raises(AssertionError, match="0 answers"):
        call_as(client, ann, 310, send_ext("T1"), b"x")
    broker.advance(HOLD_S)
    assert stored(broker) == 7


def test_a_send_waits_for_both_its_quotas() -> None:
    broker = guarded_broker()
    client = broker.client()
    ann = make_account(broker, "ann")
    allow(broker, "ann", "Topic:*", Action.PUB)
    for body in (
        {"kind": "account", "name": "ann", "messagesPerSecond": 5},
        {"kind": "topic", "name": "T1", "messagesPerSecond": 1},
    ):
        assert call_as(client, ROOT_CREDENTIALS, PUT, {}, json.dumps(body).encode()).code == 0
    for topic in ("T2", "T2", "T2", "T2", "T1"):
        assert call_as(client, ann, 310, send_ext(topic), b"x").code == 0
    with pytest.raises(AssertionError, match="0 answers"):
        call_as(client, ann, 310, send_ext("T1"), b"x")
    broker.advance(0.5)
    assert stored(broker, "T1") == 1  # the account might send again, but not to this topic
    broker.advance(0.6)
    assert stored(broker, "T1") == 2


def test_a_thousand_quotas_are_all_however_many_are_set_at_once(client: FakeClient) -> None:
    opaques = []
    for number in range(MAX_QUOTAS + 5):
        body = json.dumps({"kind": "topic", "name": f"T{number % (MAX_QUOTAS + 2)}", "messagesPerSecond": 1}).encode()
        opaques.append(client.send(PUT, body=body))
    client.broker.settle()
    # The last three are set already.
    assert codes(client, opaques) == [0] * MAX_QUOTAS + [client.answered(opaques[MAX_QUOTAS]).code] * 2 + [0] * 3
    assert client.answered(opaques[MAX_QUOTAS]).remark == "there are 1000 quotas, the limit is 1000: delete some"
    assert len(client.broker.memory.machine.state.table(QUOTAS)) == MAX_QUOTAS
    assert put(client, "topic", "absent") == 0
    assert put(client, "topic", "T0") == 0
    assert put(client, "topic", "another", messages=1) == 0


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (
            {"kind": "host", "name": "a", "messagesPerSecond": 1},
            "kind 'host': expected account, topic, account-reads, topic-reads",
        ),
        ({"kind": "topic", "name": "", "messagesPerSecond": 1}, "name '': expected 1 to 128 characters"),
        ({"kind": "topic", "name": "a", "bytesPerSecond": -1}, "bytesPerSecond -1 is outside"),
    ],
)
def test_what_is_no_quota_is_refused(client: FakeClient, body: dict[str, object], remark: str) -> None:
    answer = client.call(PUT, body=json.dumps(body).encode())
    assert answer.code != 0
    assert remark in (answer.remark or "")


def test_quotas_are_in_digest_and_snapshot_and_a_state_without_them_has_no_trace_of_the_feature() -> None:
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
    assert (state.digest(), QUOTAS.make().capture_frames(0.0), state.table(QUOTAS).capture_frames(0.0)) == (
        empty,
        {},
        {},
    )


def test_metrics_tell_of_each_quota(client: FakeClient) -> None:
    put(client, "topic", "T1", messages=1)
    send_many(client, 2)
    client.broker.advance(2 * HOLD_S)
    shown = {
        (gauge.name, *labels): number
        for part in client.broker.service.parts
        for gauge in part.labelled_gauges
        for labels, number in gauge.read()
    }
    assert shown == {("quota_held", "topic", "T1"): 1, ("quota_refused", "topic", "T1"): 0}
