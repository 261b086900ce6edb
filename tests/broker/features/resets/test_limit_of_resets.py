"""The limit of resets that no consumer has seen."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger_broker.features.resets.table import RESETS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.topics import SubscriptionGroupConfig

LIMIT = 2


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """A broker with a group that has read what there is, in a topic of four queues."""
    broker = make_broker(max_pending_resets=LIMIT)
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    broker.settle()
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


def test_a_reset_more_than_the_limit_is_refused_and_counted_whatever_asks_for_it(
    broker: ServedBroker, client: FakeClient
) -> None:
    pending = broker.memory.machine.state.table(RESETS).pending
    assert reset(client, -1).code == ResponseCode.INVALID_PARAMETER
    assert pending == {}, "all of it or nothing"
    assert (reset(client, 0).code, commit_as_reset(client, 1).code) == (0, 0)
    clone = {"srcGroup": "CG", "destGroup": "copy", "topic": "T1", "offline": "true"}
    refused = [reset(client, 2), commit_as_reset(client, 2), client.call(RequestCode.CLONE_GROUP_OFFSET, clone)]
    assert [answer.code for answer in refused] == [ResponseCode.INVALID_PARAMETER] * 3
    assert all("max_pending_resets" in (answer.remark or "") for answer in refused)
    assert (len(pending), broker.counters.max_pending_resets) == (LIMIT, 4)


def test_what_is_reset_already_may_be_reset_again_at_the_limit(broker: ServedBroker, client: FakeClient) -> None:
    assert [reset(client, queue_id).code for queue_id in (0, 1, 0, 2)] == [0, 0, 0, ResponseCode.INVALID_PARAMETER]


def test_resets_that_are_on_their_way_count(broker: ServedBroker, client: FakeClient) -> None:
    ext = {"consumerGroup": "CG", "topic": "T1", "commitOffset": "0", "reset": "true"}
    opaques = [client.send(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "queueId": str(number)}) for number in range(3)]
    broker.settle()
    codes = [client.answered(opaque).code for opaque in opaques]
    assert codes == [0, 0, ResponseCode.INVALID_PARAMETER]
