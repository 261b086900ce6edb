"""Lists of the members of a consumer group are answered by the node that all others tell of their clients."""

from __future__ import annotations

from pathlib import Path

from served_broker import MakeBroker

from dledger_broker.addresses import Address
from dledger_broker.clients.gossip import COMPLETE_S
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData


def test_a_node_that_was_deposed_while_it_waited_for_tables_does_not_answer(make_broker: MakeBroker) -> None:
    """Its own table may lack most members, and they would share the queues out anew."""
    broker = make_broker(peers={"n1": Address("127.0.0.1", 1)}, secret_file=Path("unused"))
    client = broker.client()
    opaque = client.send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
    broker.settle()
    assert not client.has_answer(opaque)
    broker.memory.node.step_down()
    broker.advance(broker.config.forward_hold_ms / 1000 + 1)
    assert client.answered(opaque).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_list_that_fits_no_frame_is_an_error(make_broker: MakeBroker) -> None:
    broker = make_broker(peers={"n1": Address("127.0.0.1", 1)}, secret_file=Path("unused"))
    client = broker.client()
    for number in range(17):
        heartbeat = HeartbeatData(f"{number:0{1 << 20}d}", consumer_data_set=[ConsumerData("CG")])
        broker.service.gossip.local.heartbeat(client, heartbeat, 0, 0, 0.0)
    opaque = client.send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
    broker.advance(COMPLETE_S + 1)
    answer = client.answered(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "larger than" in (answer.remark or "")
