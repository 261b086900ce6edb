"""Limit of resets that no consumer has seen."""

from __future__ import annotations

from collections import Counter

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, make_group

from dledger_broker.features.resets import changes
from dledger_broker.features.resets.table import RESETS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand

LIMIT = 2


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker with a consumer group, and a message in each of four queues of a topic."""
    broker = make_broker(max_pending_resets=LIMIT)
    make_group(broker)
    for queue_id in range(4):
        assert broker.client().send_message("T1", b"one", queue_id=queue_id).code == ResponseCode.SUCCESS
    return broker


def reset(client: FakeClient, queue_id: int) -> RemotingCommand:
    """Reset one queue of the group, or all (-1), to its end."""
    ext = {"topic": "T1", "group": "CG", "timestamp": "-1", "isForce": "true", "queueId": str(queue_id)}
    return client.call_from_disk(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)


def commit_as_reset(client: FakeClient, queue_id: int) -> RemotingCommand:
    """Reset one queue of the group to its beginning, as a commit."""
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": str(queue_id), "commitOffset": "0", "reset": "true"}
    return client.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def test_a_reset_beyond_max_pending_resets_is_refused_and_counted_for_any_request(client: FakeClient) -> None:
    pending = client.broker.memory.machine.state.table(RESETS).pending
    assert reset(client, -1).code == ResponseCode.INVALID_PARAMETER
    assert pending == {}, "all of it or nothing"
    assert (reset(client, 0).code, commit_as_reset(client, 1).code) == (0, 0)
    clone = {"srcGroup": "CG", "destGroup": "copy", "topic": "T1", "offline": "true"}
    refused = [reset(client, 2), commit_as_reset(client, 2), client.call(RequestCode.CLONE_GROUP_OFFSET, clone)]
    assert [answer.code for answer in refused] == [ResponseCode.INVALID_PARAMETER] * 3
    assert all("max_pending_resets" in (answer.remark or "") for answer in refused)
    assert (len(pending), client.broker.counters.max_pending_resets) == (LIMIT, 4)


def test_a_pending_reset_may_be_repeated_at_the_limit_of_resets(client: FakeClient) -> None:
    assert [reset(client, queue_id).code for queue_id in (0, 1, 0, 2)] == [0, 0, 0, ResponseCode.INVALID_PARAMETER]


def test_resets_in_flight_count_toward_the_limit(client: FakeClient) -> None:
    ext = {"consumerGroup": "CG", "topic": "T1", "commitOffset": "0", "reset": "true"}
    opaques = [client.send(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "queueId": str(number)}) for number in range(3)]
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, ResponseCode.INVALID_PARAMETER]


def test_the_queues_of_a_large_reset_are_applied_some_at_a_time(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have 10,000 queues, whose resets would hold up each node in one turn."""
    monkeypatch.setattr(changes, "MAX_ROWS", 2)
    broker = make_broker()
    make_group(broker)
    assert reset(broker.client(), -1).code == 0
    pending = broker.memory.machine.state.table(RESETS).pending
    assert sorted(Counter(one.number for one in pending.values()).values()) == [2, 2]
