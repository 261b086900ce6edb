"""Consumers that name a class get what it says; nothing that they send selects other code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, records

from dledger_broker.config import BrokerConfig, build_config
from dledger_broker.errors import ConfigError
from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.record import iter_records

LARGE = "com.example.Large"
BY_CLASS = {"subscription": LARGE, "expressionType": "CLASS"}
POP = 200050
CONFIGURED = {
    LARGE: "filters_of_tests:large",
    "Raises": "filters_of_tests:raises",
    "Loops": "filters_of_tests:loops",
}
PATIENT_MS = 20_000


@pytest.fixture
def filtering(make_broker: MakeBroker) -> Iterator[FakeClient]:
    broker = make_broker(class_filters=CONFIGURED, class_filter_timeout_ms=PATIENT_MS)
    yield broker.client()
    end(broker)


def end(broker: ServedBroker) -> None:
    """No process outlives its test."""
    broker.service.parts[ClassFilters].close()


def send(client: FakeClient, *amounts: int) -> None:
    for amount in amounts:
        client.send_message("T1", b"%d" % amount)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in records(answer)]


def test_a_pull_gets_what_the_class_says_and_goes_on_behind_what_it_saw(filtering: FakeClient) -> None:
    send(filtering, 1, 200, 5, 300, 7)
    found = filtering.call_from_disk(11, pull_ext("T1", **BY_CLASS))
    assert (found.code, bodies(found), found.ext["nextBeginOffset"]) == (0, [b"200", b"300"], "5")
    limited = filtering.call_from_disk(11, pull_ext("T1", **BY_CLASS, maxMsgNums="1"))
    assert (bodies(limited), limited.ext["nextBeginOffset"]) == ([b"200"], "3")
    nothing = filtering.call_from_disk(11, pull_ext("T1", offset=4, **BY_CLASS))
    assert (nothing.code, nothing.ext["nextBeginOffset"]) == (20, "5")


@pytest.mark.parametrize(
    ("subscription", "flag"),
    [
        (SubscriptionData("T1", LARGE, sub_version=7, class_filter_mode=True), "8"),
        (SubscriptionData("T1", LARGE, sub_version=7, class_filter_mode=True), "0"),
        (SubscriptionData("T1", LARGE, sub_version=7, expression_type="CLASS"), "0"),
    ],
)
def test_the_name_may_come_with_the_heartbeat_as_clients_of_rocketmq_say_it(
    filtering: FakeClient, subscription: SubscriptionData, flag: str
) -> None:
    send(filtering, 1, 200)
    heartbeat = HeartbeatData("c1", [], [ConsumerData("CG", subscription_data_set=[subscription])])
    broker = filtering.broker
    broker.service.gossip.local.heartbeat(filtering, heartbeat, 0, 479, broker.memory.env.now())
    broker.settle()
    assert bodies(filtering.call_from_disk(11, pull_ext("T1", sysFlag=flag, subVersion="7"))) == [b"200"]
    by_flag = pull_ext("T1", sysFlag="12", subscription=LARGE, expressionType="TAG")
    assert bodies(filtering.call_from_disk(11, by_flag)) == [b"200"]


def test_a_pull_that_waits_is_answered_when_a_message_comes_that_the_class_takes(filtering: FakeClient) -> None:
    send(filtering, 1)
    ext = pull_ext("T1", offset=1, sysFlag="6", suspendTimeoutMillis="5000", **BY_CLASS)

    async def scenario() -> RemotingCommand:
        filtering._expected = asyncio.get_running_loop().create_future()
        filtering.send(11, ext)
        filtering.broker.settle()
        other = filtering.broker.client("other")
        send(other, 200)
        return await filtering.broker.memory.env.finish(filtering._expected)

    assert bodies(asyncio.run(scenario())) == [b"200"]


def test_a_pull_that_waits_goes_on_waiting_when_its_class_rejects_what_comes(filtering: FakeClient) -> None:
    ext = pull_ext("T1", sysFlag="6", suspendTimeoutMillis="5000", **BY_CLASS)

    async def scenario() -> RemotingCommand:
        filtering._expected = asyncio.get_running_loop().create_future()
        filtering.send(11, ext)
        filtering.broker.settle()
        other = filtering.broker.client("other")
        send(other, 5)
        filtering.broker.settle()
        send(other, 200)
        return await filtering.broker.memory.env.finish(filtering._expected)

    assert bodies(asyncio.run(scenario())) == [b"200"]


def test_a_pop_takes_what_the_class_says_and_passes_over_the_rest(filtering: FakeClient) -> None:
    send(filtering, 1, 200, 5, 300, 7)
    ext = {
        "consumerGroup": "CG",
        "topic": "T1",
        "queueId": "0",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "exp": LARGE,
        "expType": "CLASS",
        "order": "false",
    }
    popped = filtering.call_from_disk(POP, ext)
    assert popped.code == 0
    assert [record.body for record in iter_records(popped.body)] == [b"200", b"300"]
    assert filtering.call_from_disk(POP, ext).code == 210


def test_a_class_that_is_not_listed_is_refused_whatever_its_name(filtering: FakeClient) -> None:
    for name in ("os:system", "filters_of_tests:large", "com.example.Other", "", "x" * 1000):
        refused = filtering.call(11, pull_ext("T1", subscription=name, expressionType="CLASS"))
        assert refused.code in (1, 23)
        assert bodies(filtering.call(11, pull_ext("T1"))) == []
    told = filtering.call(11, pull_ext("T1", subscription="com.example.Other", expressionType="CLASS"))
    assert told.remark == (
        "this broker has no class filter 'com.example.Other': its class_filters has Loops, Raises, com.example.Large"
    )


def test_a_client_asks_beforehand_whether_a_class_is_there(filtering: FakeClient) -> None:
    for name, code in ((LARGE, 0), ("com.example.Other", 1)):
        subscription = {"topic": "T1", "subString": name, "classFilterMode": True}
        body = {"clientId": "c1", "group": "CG", "subscriptionData": subscription, "namespace": None}
        assert filtering.call(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode()).code == code


def test_it_is_off_by_default(client: FakeClient) -> None:
    send(client, 200)
    for fields in (BY_CLASS, {"sysFlag": "12"}):
        refused = client.call(11, pull_ext("T1", **fields))
        assert (refused.code, refused.remark) == (1, "this broker does not filter by class: subscribe by tags")


def test_a_filter_that_fails_is_told_to_its_consumer(filtering: FakeClient) -> None:
    send(filtering, 200)
    told = filtering.call_from_disk(11, pull_ext("T1", subscription="Raises", expressionType="CLASS"))
    assert told.code == 1
    assert told.remark == "class filter Raises failed: queue offset 0: KeyError: 'customer'"


def test_one_that_loops_for_ever_is_told_and_counted_and_others_go_on(make_broker: MakeBroker) -> None:
    broker = make_broker(class_filters=CONFIGURED, class_filter_timeout_ms=500)
    client = broker.client()
    client.send_message("T1", b"loop")
    told = client.call_from_disk(11, pull_ext("T1", subscription="Loops", expressionType="CLASS"))
    assert told.code == 1
    assert told.remark == "class filter Loops failed: it took longer than class_filter_timeout_ms = 500"
    gauges = {gauge.name: gauge.read for gauge in broker.service.parts[ClassFilters].gauges}
    assert (gauges["class_filter_processes_ended"](), gauges["class_filter_waits"]()) == (1, 0)
    assert bodies(client.pull("T1")) == [b"loop"]
    end(broker)


def test_no_more_wait_for_classes_than_the_limit(make_broker: MakeBroker) -> None:
    broker = make_broker(class_filters=CONFIGURED, class_filter_timeout_ms=PATIENT_MS, max_class_filter_waits=1)
    client = broker.client()
    send(client, 200)

    async def scenario() -> tuple[int, int]:
        opaques = [client.send(11, pull_ext("T1", **BY_CLASS)) for _ in range(2)]
        client._expected = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # both tasks have asked, nothing has been answered
        await asyncio.sleep(0)
        while not all(map(client.has_answer, opaques)):
            await broker.memory.env.finish(asyncio.sleep(0))
        first, second = (client.answered(opaque).code for opaque in opaques)
        return first, second

    assert asyncio.run(scenario()) == (0, 2)
    assert broker.counters.max_class_filter_waits == 1
    end(broker)


def test_the_configuration_names_modules_and_functions() -> None:
    required = {"broker_group": "a", "node_id": "n0", "data_dir": "d"}
    config: BrokerConfig = build_config({**required, "class_filters": {LARGE: "shop.filters:large"}})
    assert config.class_filters == {LARGE: "shop.filters:large"}
    for wrong in ("large", {LARGE: "shop.filters"}, {LARGE: "shop filters:large"}, {LARGE: 3}, {"a b": "m:f"}):
        with pytest.raises(ConfigError, match="class_filters"):
            build_config({**required, "class_filters": wrong})
