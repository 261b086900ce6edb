"""Promises to a consumer that filters by properties, with expressions in SQL92."""

from __future__ import annotations

import asyncio
import json
from typing import NoReturn

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, records

from dledger.errors import TrimmedError
from dledger_broker.features.pulling.properties import MAX_EXAMINED_BYTES, max_examined
from dledger_broker.features.pulling.requests import PullRequests
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.properties import format_properties
from tests.broker.features.pop.pop_calls import pop_ext, with_group

LARGE = "amount > 100"


def sql(expression: str, **fields: str) -> dict[str, str]:
    """What a pull by an expression says."""
    return {"subscription": expression, "expressionType": "SQL92", **fields}


def send_amounts(client: FakeClient, *amounts: int | None) -> None:
    for amount in amounts:
        properties = {} if amount is None else {"amount": str(amount)}
        client.send_message("T1", b"%r" % amount, properties=format_properties(properties))


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in records(answer)]


def position(answer: RemotingCommand) -> tuple[int, str]:
    return answer.code, answer.ext["nextBeginOffset"]


def held(client: FakeClient, expression: str, ms: int = 5_000, **fields: str) -> int:
    ext = pull_ext("T1", sysFlag="6", suspendTimeoutMillis=str(ms), **sql(expression, **fields))
    return client.send(RequestCode.PULL_MESSAGE, ext)


def test_a_pull_gets_what_matches_and_goes_on_behind_what_was_examined(client: FakeClient) -> None:
    send_amounts(client, 1, 200, None, 300, 300, 5)
    found = client.pull("T1", **sql(LARGE))
    assert bodies(found) == [b"200", b"300", b"300"]
    assert position(found) == (0, "6")
    nothing = client.pull("T1", **sql("amount > 1000"))
    assert (*position(nothing), nothing.remark) == (20, "6", "NO_MATCHED_MESSAGE")


def test_what_the_limits_of_a_pull_leave_out_is_next(client: FakeClient) -> None:
    send_amounts(client, 200, 1, 300, 2, 400, 3)
    first = client.pull("T1", **sql(LARGE, maxMsgNums="2"))
    assert (bodies(first), position(first)) == ([b"200", b"300"], (0, "4"))
    one = client.pull("T1", **sql(LARGE, maxMsgNums="0"))
    assert (bodies(one), position(one)) == ([b"200"], (0, "2"))
    small = client.pull("T1", **sql(LARGE, maxMsgBytes="10"))
    assert (bodies(small), position(small)) == ([b"200"], (0, "2"))


def test_messages_of_several_queues_and_forms_are_told_apart(client: FakeClient) -> None:
    """Records of other queues lie between those of this one."""
    for number in range(6):
        queue_id, amount = number % 2, 200 if number % 3 else 1
        client.send_message("T1", b"%d" % number, queue_id, properties=f"amount\x01{amount}\x02")
    assert bodies(client.pull("T1", 1, **sql(LARGE))) == [b"1", b"5"]
    long_topic = "T" * 127
    client.broker.memory.create_topic(long_topic)
    client.send_message(long_topic, b"long", properties="amount\x01200\x02")
    assert bodies(client.pull(long_topic, **sql(LARGE))) == [b"long"]


def test_a_long_look_without_a_match_ends_and_the_next_one_goes_on(broker: ServedBroker, client: FakeClient) -> None:
    most = max_examined(SqlFilter(LARGE))
    send_amounts(client, *([1] * (most + 5)), 200)
    assert position(client.pull("T1", **sql(LARGE))) == (20, str(most))
    assert broker.counters.records_examined == most
    assert bodies(client.pull("T1", offset=most, **sql(LARGE))) == [b"200"]


def test_a_look_reads_no_more_than_so_many_bytes(client: FakeClient) -> None:
    for _ in range(3):
        assert client.send_message("T1", bytes(MAX_EXAMINED_BYTES * 2 // 5), properties="amount\x011\x02").code == 0
    assert position(client.pull("T1", **sql(LARGE))) == (20, "2")


def test_a_look_reads_one_record_of_any_size(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_broker.features.pulling.reads.MAX_EXAMINED_BYTES", 1_000)
    for _ in range(3):
        client.send_message("T1", bytes(2_000), properties="amount\x011\x02")
    assert position(client.pull("T1", **sql(LARGE))) == (20, "1")
    assert position(client.pull("T1", offset=1, **sql("amount = 1"))) == (0, "2")


def test_a_long_expression_is_asked_about_fewer_messages(client: FakeClient) -> None:
    expression = " OR ".join([LARGE] * 500)
    send_amounts(client, *([1] * 40))
    code, next_begin = position(client.pull("T1", **sql(expression)))
    assert code == 20
    assert 16 <= int(next_begin) < 40


# -------------------------------------------------------------------- waiting


def test_a_waiting_pull_is_woken_by_what_matches_alone(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held(client, LARGE)
    other = broker.client("other")
    send_amounts(other, 1, None, 99)
    assert not client.has_answer(waiting)
    send_amounts(other, 200)
    answer = client.answered(waiting)
    assert (bodies(answer), position(answer)) == ([b"200"], (0, "4"))


def test_a_waiting_pull_ends_behind_what_its_filter_rejected(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held(client, LARGE, ms=1_000)
    send_amounts(broker.client("other"), 1, 2)
    broker.memory.env.advance(1.0)
    broker.settle()
    assert position(client.answered(waiting)) == (19, "2")


@pytest.mark.parametrize("fields", [sql(LARGE), {"subscription": "red"}])
def test_a_waiting_pull_finds_a_match_behind_more_than_one_look(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    """All that arrived is examined: nothing else would wake the pull."""
    waiting = client.send(RequestCode.PULL_MESSAGE, pull_ext("T1", sysFlag="6", suspendTimeoutMillis="5000", **fields))
    broker.settle()
    pulls = broker.service.parts[PullRequests]
    monkeypatch.setattr(pulls.held, "arrived", lambda _: None)
    other = broker.client("other")
    send_amounts(other, *([1] * 900))
    other.send_message("T1", b"last", properties="amount\x01200\x02TAGS\x01red\x02")
    monkeypatch.undo()
    pulls.held.arrived([broker.memory.machine.state.topics["T1"].queue(0)])
    assert bodies(client.answered(waiting)) == [b"last"]


# -------------------------------------------------------------------- reading


def test_records_that_are_not_in_memory_are_examined_from_the_disk(broker: ServedBroker, client: FakeClient) -> None:
    send_amounts(client, 1, 200)
    client.pull("T1")
    broker.memory.node.cold = True
    assert bodies(client.call_from_disk(11, pull_ext("T1", **sql(LARGE)))) == [b"200"]
    nothing = client.call_from_disk(11, pull_ext("T1", **sql("amount > 1000")))
    assert position(nothing) == (20, "2")


def test_a_waiting_pull_is_answered_from_the_disk(broker: ServedBroker, client: FakeClient) -> None:
    async def scenario() -> RemotingCommand:
        waiting = held(client, LARGE)
        broker.settle()
        broker.memory.node.cold = True
        send_amounts(broker.client("other"), 1, 200)
        while not client.has_answer(waiting):
            broker.memory.env.run_ready()
            await asyncio.sleep(0)
        return client.answered(waiting)

    assert position(asyncio.run(scenario())) == (20, "1")


def test_a_waiting_pull_whose_messages_come_into_memory_meanwhile_is_answered_by_one_look(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first look found on the disk is read there; a second look in the same turn would answer 20 at once."""
    log = broker.service.parts[PullRequests]._log
    read, looks = log.read_nowait, list[int]()

    def cold_once(position: int, size: int) -> bytes | None:
        looks.append(position)
        return None if len(looks) == 1 else read(position, size)

    async def scenario() -> RemotingCommand:
        waiting = held(client, LARGE)
        broker.settle()
        monkeypatch.setattr(log, "read_nowait", cold_once)
        send_amounts(broker.client("other"), 1)
        assert not client.has_answer(waiting)
        while not client.has_answer(waiting):
            broker.memory.env.run_ready()
            await asyncio.sleep(0)
        return client.answered(waiting)

    assert position(asyncio.run(scenario())) == (20, "1")
    assert len(looks) == 1


def test_a_waiting_pull_whose_messages_are_trimmed_is_repeated(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trimmed(*_: object) -> NoReturn:
        raise TrimmedError("the log starts behind the first of them")

    waiting = held(client, LARGE)
    broker.settle()
    monkeypatch.setattr(broker.service.parts[PullRequests]._log, "read_nowait", trimmed)
    send_amounts(broker.client("other"), 200)
    assert position(client.answered(waiting)) == (20, "0")


# -------------------------------------------------------------------- subscriptions


def beat(client: FakeClient, expression: str, version: int = 7) -> None:
    subscription = SubscriptionData("T1", expression, sub_version=version, expression_type="SQL92")
    heartbeat = HeartbeatData("c1", [], [ConsumerData("CG", subscription_data_set=[subscription])])
    broker = client.broker
    broker.service.gossip.local.heartbeat(client, heartbeat, 0, 479, broker.memory.env.now())
    broker.settle()


def test_the_expression_may_come_with_the_heartbeat(client: FakeClient) -> None:
    send_amounts(client, 1, 200)
    beat(client, LARGE)
    assert bodies(client.pull("T1", sysFlag="0", subVersion="7")) == [b"200"]


def test_a_fault_is_told_with_its_place_also_of_a_heartbeats_expression(client: FakeClient) -> None:
    beat(client, "amount >")
    for answer in (client.pull("T1", sysFlag="0"), client.pull("T1", **sql("amount >"))):
        assert answer.code == 23
        assert answer.remark is not None
        assert "line 1, column 9: expected a property or a literal, found the end" in answer.remark


def test_an_unknown_or_old_subscription_is_told_with_topic_and_versions(client: FakeClient) -> None:
    beat(client, LARGE)
    old = client.pull("T1", sysFlag="0", subVersion="8")
    assert old.code == 25
    assert all(word in str(old.remark) for word in ("T1", "version 7", "version 8"))
    client.broker.memory.create_topic("T2")
    unknown = client.pull("T2", sysFlag="0", subVersion="8")
    assert unknown.code == 24
    assert all(word in str(unknown.remark) for word in ("T2", "version 8"))
    offline = client.pull("T2", sysFlag="0", subVersion="8", consumerGroup="other")
    assert offline.code == 24
    assert all(word in str(offline.remark) for word in ("other", "T2", "version 8"))


def check(client: FakeClient, **subscription: object) -> RemotingCommand:
    body = {"clientId": "c1", "group": "CG", "subscriptionData": {"topic": "T1", **subscription}, "namespace": None}
    return client.call(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())


def test_a_client_asks_before_it_starts_whether_its_expression_can_be_used(client: FakeClient) -> None:
    assert check(client, expressionType="SQL92", subString=LARGE).code == 0
    assert check(client, expressionType="TAG", subString="a || b", classFilterMode=False, subVersion=1).code == 0
    assert check(client, subString="*").code == 0
    bad = check(client, expressionType="SQL92", subString="amount >")
    assert (bad.code, "column 9" in str(bad.remark)) == (23, True)
    assert check(client, expressionType="SQL92").code == 23
    assert check(client, expressionType="XPATH", subString="//a").code == 1
    for body in (b"{}", b"[", b'{"subscriptionData":{}}'):
        assert client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == 1


def test_a_broker_may_be_told_not_to_filter_by_properties(make_broker: MakeBroker) -> None:
    client = make_broker(property_filter=False).client()
    refused = "The broker does not support consumer to filter message by SQL92"
    for answer in (check(client, expressionType="SQL92", subString=LARGE), client.pull("T1", **sql(LARGE))):
        assert (answer.code, answer.remark) == (1, refused)
    assert check(client, subString="red").code == 0


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("max_filter_chars", "amount > 1", "amount > 1000"),
        ("max_filter_depth", "(((amount > 1)))", "((((amount > 1))))"),
        ("max_filter_operands", "amount > 1 AND b", "amount > 1 AND b = 2"),
    ],
)
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.CHECK_CLIENT_CONFIG, 200050])
def test_limits_of_expressions_are_the_nodes_and_are_counted(
    make_broker: MakeBroker, key: str, good: str, bad: str, code: int
) -> None:
    limits = {"max_filter_chars": 12, "max_filter_depth": 3, "max_filter_operands": 3}
    spaced = {**limits, "max_filter_chars": 100} if key != "max_filter_chars" else limits
    broker = make_broker(**spaced)
    client = with_group(broker).client()

    def answered(expression: str) -> RemotingCommand:
        if code == RequestCode.PULL_MESSAGE:
            return client.pull("T1", **sql(expression))
        if code == RequestCode.CHECK_CLIENT_CONFIG:
            return check(client, expressionType="SQL92", subString=expression)
        return client.call(code, pop_ext(exp=expression, expType="SQL92"))

    assert answered(good).code != 23
    assert getattr(broker.counters, key) == 0
    refused = answered(bad)
    assert refused.code == 23
    assert str(spaced[key]) in str(refused.remark)
    assert getattr(broker.counters, key) == 1


def test_the_limit_of_characters_is_that_of_tags_too(make_broker: MakeBroker) -> None:
    broker = make_broker(max_filter_chars=8)
    client = broker.client()
    assert client.pull("T1", subscription="red||tea").code != 23
    assert client.pull("T1", subscription="red||teal").code == 23
    assert broker.counters.max_filter_chars == 1
