"""Request modes of groups: set (401), told (402), replicated, limited."""

from __future__ import annotations

import json

import pytest
from served_broker import FakeClient, MakeBroker

from dledger_broker.features import FEATURES
from dledger_broker.features.assignments.table import REQUEST_MODES, Mode, ModeKey, PutRequestMode
from dledger_broker.features.groups.table import DeleteGroup
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_remoting.topics import TopicConfig
from tests.broker.features.assignments.assignment_calls import MODES, SET_MODE, modes_of, set_mode
from tests.broker.kernel.applied_commands import apply

KEY = ModeKey("T1", "CG")
POPS = PutRequestMode(*KEY, pops=True, pop_share_queues=2)


def test_modes_are_told_by_topic_and_group(client: FakeClient) -> None:
    assert json.loads(client.call(MODES).body) == {"messageRequestModeMap": {}}
    assert (set_mode(client), set_mode(client, "PULL", 3, group="OTHER")) == (0, 0)
    assert json.loads(client.call(MODES).body)["messageRequestModeMap"] == {
        "T1": {
            "CG": {"topic": "T1", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0},
            "OTHER": {"topic": "T1", "consumerGroup": "OTHER", "mode": "PULL", "popShareQueueNum": 3},
        }
    }


def test_the_last_mode_counts(client: FakeClient) -> None:
    set_mode(client)
    set_mode(client, "PULL")
    assert dict(modes_of(client.broker)) == {KEY: Mode(pops=False)}


def test_what_comes_again_to_consumers_that_pull_is_not_popped(client: FakeClient) -> None:
    assert set_mode(client, topic="%RETRY%CG") == 16
    assert set_mode(client, topic="rmq_sys_wheel_timer") == 16
    assert len(modes_of(client.broker)) == 0


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topic":"T1"}', b'{"topic":"T1","consumerGroup":"CG","mode":"x"}'])
def test_modes_that_mean_nothing_are_refused_with_a_text(client: FakeClient, body: bytes) -> None:
    answer = client.call(SET_MODE, body=body)
    assert answer.code != 0
    assert answer.remark
    assert len(modes_of(client.broker)) == 0


def test_a_mode_more_than_the_limit_is_refused_and_counted_also_while_others_are_under_way(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker(max_request_modes=2)
    client = broker.client()
    bodies = [json.dumps({"topic": "T1", "consumerGroup": name, "mode": "POP"}).encode() for name in "ABCB"]
    opaques = [client.send(SET_MODE, body=body) for body in bodies]
    broker.settle()
    assert [client.answered(opaque).code == 0 for opaque in opaques] == [True, True, False, True]
    assert "max_request_modes" in client.answered(opaques[2]).remark
    assert (set_mode(client, "PULL", group="A"), broker.counters.max_request_modes) == (0, 1)


def test_a_mode_ends_with_its_topic_and_with_its_group() -> None:
    for end in (DeleteTopic("T1"), DeleteGroup("CG", clean_offsets=False)):
        state = BrokerState(FEATURES)
        other = PutRequestMode("T2", "OTHER", pops=True, pop_share_queues=0)
        apply(state, PutTopic(TopicConfig("T1"), 0), POPS, other, end)
        assert [key for key, _ in state.table(REQUEST_MODES)] == [("T2", "OTHER")]


def test_modes_are_in_digest_and_snapshot_and_leave_nothing_behind() -> None:
    state = BrokerState(FEATURES)
    empty = state.digest()
    apply(state, POPS)
    assert state.digest() != empty
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    assert restored.digest() == state.digest()
    assert restored.table(REQUEST_MODES).get(KEY) == Mode(pops=True, pop_share_queues=2)
    apply(state, DeleteGroup("CG", clean_offsets=True))
    assert state.digest() == empty
