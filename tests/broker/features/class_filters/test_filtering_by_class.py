"""Consumers that name a class get the messages that it selects. Nothing that they send selects other code."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, join, pull_ext, records

from dledger_broker.config import BrokerConfig, build_config
from dledger_broker.errors import ConfigError
from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import SubscriptionData
from tests.broker.features.pop.pop_calls import POP, pop_ext

LARGE = "com.example.Large"
CONFIGURED = {
    LARGE: "filters_of_tests:large",
    "Raises": "filters_of_tests:raises",
    "Loops": "filters_of_tests:loops",
}
MakeFiltering = Callable[..., FakeClient]


@pytest.fixture
def make_filtering(make_broker: MakeBroker) -> Iterator[MakeFiltering]:
    """Return a factory of clients whose broker has filters. No process of a filter outlives its test."""
    made: list[ServedBroker] = []

    def make(*, timeout_ms: int = 20_000, **keys: int) -> FakeClient:
        made.append(make_broker(class_filters=CONFIGURED, class_filter_timeout_ms=timeout_ms, **keys))
        return made[-1].client()

    yield make
    for broker in made:
        broker.service.parts[ClassFilters].close()


@pytest.fixture
def filtering(make_filtering: MakeFiltering) -> FakeClient:
    return make_filtering()


def send(client: FakeClient, *amounts: int) -> None:
    for amount in amounts:
        client.send_message("T1", b"%d" % amount)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in records(answer)]


def by_class(name: str, offset: int = 0, **fields: str) -> dict[str, str]:
    return pull_ext("T1", offset=offset, subscription=name, expressionType="CLASS", **fields)


def test_a_pull_returns_messages_that_its_class_accepts_and_continues_behind_the_rest(filtering: FakeClient) -> None:
    send(filtering, 1, 200, 5, 300, 7)
    found = filtering.call_from_disk(11, by_class(LARGE))
    assert (found.code, bodies(found), found.ext["nextBeginOffset"]) == (0, [b"200", b"300"], "5")
    limited = filtering.call_from_disk(11, by_class(LARGE, maxMsgNums="1"))
    assert (bodies(limited), limited.ext["nextBeginOffset"]) == ([b"200"], "3")
    nothing = filtering.call_from_disk(11, by_class(LARGE, 4))
    assert (nothing.code, nothing.ext["nextBeginOffset"]) == (20, "5")


@pytest.mark.parametrize(
    ("said", "flag"),
    [({"class_filter_mode": True}, "8"), ({"class_filter_mode": True}, "0"), ({"expression_type": "CLASS"}, "0")],
)
def test_the_class_name_may_come_with_the_heartbeat(filtering: FakeClient, said: dict[str, Any], flag: str) -> None:
    send(filtering, 1, 200)
    join(filtering, "c1", SubscriptionData("T1", LARGE, sub_version=7, **said))
    filtering.broker.settle()
    assert bodies(filtering.call_from_disk(11, pull_ext("T1", sysFlag=flag, subVersion="7"))) == [b"200"]
    by_flag = pull_ext("T1", sysFlag="12", subscription=LARGE, expressionType="TAG")
    assert bodies(filtering.call_from_disk(11, by_flag)) == [b"200"]


def test_a_held_pull_keeps_waiting_when_its_class_rejects_a_new_message(filtering: FakeClient) -> None:
    ext = by_class(LARGE, sysFlag="6", suspendTimeoutMillis="5000")

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


def test_a_pop_takes_messages_that_its_class_accepts_and_skips_the_rest(filtering: FakeClient) -> None:
    send(filtering, 1, 200, 5, 300, 7)
    ext = pop_ext(queueId="0", exp=LARGE, expType="CLASS")
    popped = filtering.call_from_disk(POP, ext)
    assert (popped.code, bodies(popped)) == (0, [b"200", b"300"])
    assert filtering.call_from_disk(POP, ext).code == 210


def test_an_unlisted_class_is_refused(filtering: FakeClient) -> None:
    for name in ("os:system", "filters_of_tests:large", "com.example.Other", "", "x" * 1000):
        assert filtering.call(11, by_class(name)).code in (1, 23)
        assert bodies(filtering.call(11, pull_ext("T1"))) == []
    assert filtering.call(11, by_class("com.example.Other")).remark == (
        "this broker has no class filter 'com.example.Other': its class_filters has Loops, Raises, com.example.Large"
    )


def test_check_client_config_tells_whether_a_class_is_listed(filtering: FakeClient) -> None:
    for name, code in ((LARGE, 0), ("com.example.Other", 1)):
        subscription = {"topic": "T1", "subString": name, "classFilterMode": True}
        body = {"clientId": "c1", "group": "CG", "subscriptionData": subscription, "namespace": None}
        assert filtering.call(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode()).code == code


def test_class_filters_are_off_by_default(client: FakeClient) -> None:
    send(client, 200)
    for ext in (by_class(LARGE), pull_ext("T1", sysFlag="12")):
        refused = client.call(11, ext)
        assert (refused.code, refused.remark) == (1, "this broker does not filter by class: subscribe by tags")


def test_a_class_filter_sees_the_stored_body_if_decompression_fails(filtering: FakeClient) -> None:
    """Every client that may send can store such a body, and it must not stop consumers that filter."""
    filtering.send_message("T1", b"250", f="1")
    filtering.send_message("T1", b"300")
    assert bodies(filtering.call_from_disk(11, by_class(LARGE))) == [b"250", b"300"]


def test_an_exception_of_a_class_filter_is_reported_to_its_consumer_and_keeps_its_process(
    filtering: FakeClient,
) -> None:
    send(filtering, 1, 200)
    for offset in (0, 1):
        told = filtering.call_from_disk(11, by_class("Raises", offset))
        words = f"class filter Raises failed: queue offset {offset}: KeyError: 'customer'"
        assert (told.code, told.remark) == (1, words)
    assert filtering.broker.gauge("class_filter_processes_ended") == 0


def test_an_endless_class_filter_is_reported_and_counted_and_other_pulls_go_on(make_filtering: MakeFiltering) -> None:
    client = make_filtering(timeout_ms=500)
    client.send_message("T1", b"loop")
    told = client.call_from_disk(11, by_class("Loops"))
    words = "class filter Loops failed: it took longer than class_filter_timeout_ms = 500"
    assert (told.code, told.remark) == (1, words)
    assert [client.broker.gauge(f"class_filter_{name}") for name in ("processes_ended", "waits")] == [1, 0]
    assert bodies(client.pull("T1")) == [b"loop"]


def test_pulls_beyond_max_class_filter_waits_are_refused(make_filtering: MakeFiltering) -> None:
    client = make_filtering(max_class_filter_waits=1)
    broker = client.broker
    send(client, 200)

    async def scenario() -> list[int]:
        opaques = [client.send(11, by_class(LARGE)) for _ in range(2)]
        client._expected = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # both tasks have asked, nothing has been answered
        await asyncio.sleep(0)
        while not all(map(client.has_answer, opaques)):
            await broker.memory.env.finish(asyncio.sleep(0))
        return [client.answered(opaque).code for opaque in opaques]

    assert asyncio.run(scenario()) == [0, 2]
    assert broker.counters.max_class_filter_waits == 1


def test_the_configuration_names_modules_and_functions() -> None:
    required = {"broker_group": "a", "node_id": "n0", "data_dir": "d"}
    config: BrokerConfig = build_config({**required, "class_filters": {LARGE: "shop.filters:large"}})
    assert config.class_filters == {LARGE: "shop.filters:large"}
    for wrong in ("large", {LARGE: "shop.filters"}, {LARGE: "shop filters:large"}, {LARGE: 3}, {"a b": "m:f"}):
        with pytest.raises(ConfigError, match="class_filters"):
            build_config({**required, "class_filters": wrong})
