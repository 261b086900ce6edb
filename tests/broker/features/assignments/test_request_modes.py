"""Request modes of groups: set (401), told (402), replicated, limited."""

import json

import pytest
from served_broker import FakeClient, MakeBroker

from dledger_broker.features import FEATURES
from dledger_broker.features.assignments.table import REQUEST_MODES, Mode, ModeKey, PutRequestMode
from dledger_broker.features.groups.table import DeleteGroup
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_remoting.topics import TopicConfig
from tests.broker.features.assignments.assignment_calls import SET_MODE, modes_of, set_mode
from tests.broker.kernel.applied_commands import apply

KEY = ModeKey("T1", "CG")
POPS = PutRequestMode(*KEY, pops=True, pop_share_queues=2)


def test_the_last_mode_counts(client: FakeClient) -> None:
    for mode in ("POP", "PULL"):
        set_mode(client, mode)
    assert dict(modes_of(client.broker)) == {KEY: Mode(pops=False)}


def test_pop_mode_is_refused_for_retry_and_system_topics(client: FakeClient) -> None:
    assert [set_mode(client, topic=topic) for topic in ("%RETRY%CG", "rmq_sys_wheel_timer")] == [16, 16]
    assert len(modes_of(client.broker)) == 0


def test_a_mode_beyond_max_request_modes_is_refused_and_counted_even_in_flight(make_broker: MakeBroker) -> None:
    broker = make_broker(max_request_modes=2)
    client = broker.client()
    bodies = [{"topic": "T1", "consumerGroup": name, "mode": "POP"} for name in "ABCB"]
    opaques = [client.send(SET_MODE, body=json.dumps(body).encode()) for body in bodies]
    broker.settle()
    assert [client.answered(opaque).code == 0 for opaque in opaques] == [True, True, False, True]
    assert "max_request_modes" in client.answered(opaques[2]).remark
    assert (set_mode(client, "PULL", group="A"), broker.counters.max_request_modes) == (0, 1)


@pytest.mark.parametrize("end", [DeleteTopic("T1"), DeleteGroup("CG", clean_offsets=False)])
def test_a_mode_ends_with_its_topic_and_with_its_group(end: Command) -> None:
    state, without = BrokerState(FEATURES), BrokerState(FEATURES)
    other = PutRequestMode("T2", "OTHER", pops=True, pop_share_queues=0)
    apply(state, PutTopic(TopicConfig("T1"), 0), POPS, other, end)
    apply(without, other)
    table, expected = state.table(REQUEST_MODES), without.table(REQUEST_MODES)
    assert (list(table), table.digest) == (list(expected), expected.digest)
