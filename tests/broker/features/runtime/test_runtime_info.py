"""A node's report on itself to RocketMQ's tools and to ours (28)."""

from __future__ import annotations

from importlib.metadata import version

import msgspec
import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.replica.status import NodeStatus
from dledger_broker.features.runtime.description import RuntimeInfo
from dledger_broker.features.runtime.throughput import PERIOD_S
from dledger_remoting.bodies import KVTable, decode_body


def told(client: FakeClient) -> dict[str, str]:
    answer = client.call(28)
    assert answer.code == 0
    return decode_body(KVTable, answer.body).table


def test_a_node_tells_what_its_http_port_tells_and_what_rocketmqs_tools_read(broker: ServedBroker) -> None:
    broker.memory.node.disk_used = 120
    broker.service.parts[RuntimeInfo].start()
    broker.advance(86_400 + 3_661)
    table = told(broker.client())
    assert msgspec.json.decode(table["dledgerStatus"], type=NodeStatus) == broker.memory.node.status()
    assert table["brokerVersionDesc"] == version("dledger-mq")
    assert table["brokerActive"] == "true"
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["dledgerUptimeMs"] == "90061000"
    assert float(table["commitLogDiskRatio"]) == 0.12
    assert int(table["commitLogMaxOffset"]) == broker.memory.machine.applied_position
    assert table["dledgerDraining"] == "false"
    broker.service.parts[RuntimeInfo].stop()


def test_a_node_tells_the_addresses_of_the_others_as_far_as_it_has_been_told(broker: ServedBroker) -> None:
    own = broker.group.node_id
    assert msgspec.json.decode(told(broker.client())["dledgerAddresses"]) == {own: broker.group.address_of(own)}


@pytest.mark.parametrize(("http_port", "shown"), [(0, None), (10913, "mq.example:10913")])
def test_the_http_port_is_told_where_there_is_one(make_broker: MakeBroker, http_port: int, shown: str | None) -> None:
    broker = make_broker(http_port=http_port, advertised_host="mq.example")
    assert told(broker.client()).get("dledgerHttp") == shown


def test_averages_are_of_fixed_windows_however_often_somebody_asks(broker: ServedBroker) -> None:
    """Two dashboards must not halve each other's figures."""
    client = broker.client()
    broker.service.parts[RuntimeInfo].start()
    for _ in range(20):
        assert client.call(310, send_ext("T1"), b"x").code == 0
    broker.advance(PERIOD_S)
    assert [told(client)["putTps"] for _ in range(2)] == ["2.0 2.0 2.0"] * 2
    broker.advance(PERIOD_S)
    assert told(client)["putTps"] == "0.0 1.0 1.0"
    for _ in range(60):
        broker.advance(PERIOD_S)
    assert told(client)["putTps"] == "0.0 0.0 0.0"
    assert told(client)["getTransferredTps"] == "0.0 0.0 0.0"
    broker.service.parts[RuntimeInfo].stop()


def test_totals_of_days_are_those_of_mqadmin(broker: ServedBroker) -> None:
    """clusterList -m shows differences: today is what came since this morning."""
    client, day = broker.client(), 86_400
    runtime = broker.service.parts[RuntimeInfo]
    runtime.start()
    for messages in (3, 2):
        for _ in range(messages):
            assert client.call(310, send_ext("T1"), b"x").code == 0
        broker.advance(day)
    assert client.call(310, send_ext("T1"), b"x").code == 0
    table = told(client)
    put = [int(table[f"msgPutTotal{time}"]) for time in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    assert put == [3, 5, 6]
    assert [table[f"msgGetTotal{time}"] for time in ("TodayMorning", "TodayNow")] == ["0", "0"]
    runtime.stop()
