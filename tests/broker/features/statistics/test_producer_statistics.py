"""Statistics of producers: who is connected, to all nodes and to one."""

from __future__ import annotations

from served_broker import FakeClient, ServedBroker, json_body

from dledger_broker.clients.tables import ClientRow
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.heartbeat import HeartbeatData, ProducerData
from dledger_remoting.hosts import HostAddress


def produce(client: FakeClient, client_id: str, *groups: str) -> None:
    heartbeat = HeartbeatData(client_id, [ProducerData(group) for group in groups])
    broker = client.broker
    broker.service.gossip.local.heartbeat(client, heartbeat, LanguageCode.GO, 479, broker.memory.env.now())


def test_clients_of_a_producer_group_on_all_nodes_are_told_once(broker: ServedBroker) -> None:
    client = broker.client()
    produce(client, "here", "PG")
    rows = [ClientRow(name, "10.0.0.7:1", LanguageCode.JAVA, 401, ("PG",), ()) for name in ("here", "there")]
    broker.service.gossip.merged.replace("n2", rows)
    connections = json_body(client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"}))
    assert connections == {
        "connectionSet": [
            {"clientAddr": str(client.address), "clientId": "here", "language": "GO", "version": 479},
            {"clientAddr": "10.0.0.7:1", "clientId": "there", "language": "JAVA", "version": 401},
        ]
    }
    nobody = client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "OTHER"})
    assert (nobody.code, nobody.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[OTHER] not exist")


def test_producers_of_a_node_are_told_with_the_times_of_their_heartbeats(broker: ServedBroker) -> None:
    first, second = broker.client(), broker.client("client/2")
    second.address = HostAddress("10.0.0.10", 5)
    heard_ms = broker.memory.env.wall_ms()
    produce(first, "b", "PG")
    broker.advance(7)
    produce(second, "a", "PG", "QG")
    told = json_body(first.call(RequestCode.GET_ALL_PRODUCER_INFO))["data"]
    assert [(one["clientId"], one["lastUpdateTimestamp"]) for one in told["PG"]] == [
        ("a", heard_ms + 7_000),
        ("b", heard_ms),
    ]
    assert told["QG"] == [
        {
            "clientId": "a",
            "language": "GO",
            "lastUpdateTimestamp": heard_ms + 7_000,
            "remoteIP": "/10.0.0.10:5",
            "version": 479,
        }
    ]
