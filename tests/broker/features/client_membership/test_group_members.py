"""What a leader makes for the groups of clients, and which clients are told of new leaders."""

from __future__ import annotations

from served_broker import FakeClient, ServedBroker

from dledger.errors import BusyError
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel.trying_again import RETRY_S

HEARTBEAT = (
    b'{"clientID":"c1","consumerDataSet":[{"groupName":"NEW","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    b'"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[]}]}'
)


def test_what_was_refused_is_made_later(broker: ServedBroker, client: FakeClient) -> None:
    """A client of another node is told of only when it changes: nobody else would ask again."""
    node, state = broker.memory.node, broker.memory.machine.state
    node.stage_error = BusyError("too many bytes wait for a majority")
    client.send(34, body=HEARTBEAT)
    broker.settle()
    node.stage_error = None
    assert "NEW" not in state.table(GROUPS).by_name
    broker.memory.env.advance(RETRY_S)
    broker.settle()
    assert "NEW" in state.table(GROUPS).by_name
    assert "%RETRY%NEW" in state.topics


def test_a_heartbeat_that_is_not_the_first_request_asks_for_notices_too(
    client: FakeClient, broker: ServedBroker
) -> None:
    client.send_message("T1")
    assert not client.wants_leader_notices
    client.send(34, {"dledgerNotify": "true"}, HEARTBEAT)
    broker.settle()
    assert client.wants_leader_notices
