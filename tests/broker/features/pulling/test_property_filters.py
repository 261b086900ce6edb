"""Promises to a consumer that filters by properties, with expressions in SQL92."""

from __future__ import annotations

import asyncio
import json

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused, bodies, pull_ext

from dledger_broker.features.pulling.properties import MAX_EXAMINED_BYTES, max_examined
from dledger_broker.features.pulling.requests import PullRequests
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.properties import format_properties
from tests.broker.features.pop.pop_calls import pop_ext, with_group
from tests.broker.features.pulling.pull_calls import beat, held_pull, position, sql, trimmed

LARGE = "amount > 100"


def send_amounts(client: FakeClient, *amounts: int | None) -> None:
    for amount in amounts:
        properties = {} if amount is None else {"amount": str(amount)}
        client.send_message("T1", b"%r" % amount, properties=format_properties(properties))


def test_a_pull_returns_matching_messages_and_continues_behind_the_examined_messages(client: FakeClient) -> None:
    send_amounts(client, 1, 200, None, 300, 300, 5)
    found = client.pull("T1", **sql(LARGE))
    assert (bodies(found), position(found)) == ([b"200", b"300", b"300"], (0, "6"))
    nothing = client.pull("T1", **sql("amount > 1000"))
    assert (*position(nothing), nothing.remark) == (20, "6", "NO_MATCHED_MESSAGE")


@pytest.mark.parametrize(
    ("limit", "found", "next_begin"),
    [
        ({"maxMsgNums": "2"}, [b"200", b"300"], "4"),
        ({"maxMsgNums": "0"}, [b"200"], "2"),
        ({"maxMsgBytes": "10"}, [b"200"], "2"),
    ],
)
def test_a_filtered_pull_continues_behind_the_last_message_within_its_limits(
    client: FakeClient, limit: dict[str, str], found: list[bytes], next_begin: str
) -> None:
    send_amounts(client, 200, 1, 300, 2, 400, 3)
    answer = client.pull("T1", **sql(LARGE, **limit))
    assert (bodies(answer), position(answer)) == (found, (0, next_begin))


def test_messages_of_several_queues_and_forms_are_told_apart(client: FakeClient) -> None:
    """Records of other queues lie between those of this queue."""
    for number in range(6):
        queue_id, amount = number % 2, 200 if number % 3 else 1
        client.send_message("T1", b"%d" % number, queue_id, properties=f"amount\x01{amount}\x02")
    assert bodies(client.pull("T1", 1, **sql(LARGE))) == [b"1", b"5"]
    long_topic = "T" * 127
    client.broker.memory.create_topic(long_topic)
    client.send_message(long_topic, b"long", properties="amount\x01200\x02")
    assert bodies(client.pull(long_topic, **sql(LARGE))) == [b"long"]


def test_a_filtered_pull_examines_a_limited_number_of_messages_and_the_next_continues(client: FakeClient) -> None:
    most = max_examined(SqlFilter(LARGE))
    send_amounts(client, *([1] * (most + 5)), 200)
    assert position(client.pull("T1", **sql(LARGE))) == (20, str(most))
    assert client.broker.counters.records_examined == most
    assert bodies(client.pull("T1", offset=most, **sql(LARGE))) == [b"200"]


def test_a_filtered_pull_examines_at_least_one_record_and_a_limited_number_of_bytes(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert client.send_message("T1", bytes(MAX_EXAMINED_BYTES * 2 // 5), properties="amount\x011\x02").code == 0
    assert position(client.pull("T1", **sql(LARGE))) == (20, "2")
    monkeypatch.setattr("dledger_broker.features.pulling.reads.MAX_EXAMINED_BYTES", 1_000)
    assert position(client.pull("T1", **sql(LARGE))) == (20, "1")
    assert position(client.pull("T1", offset=1, **sql("amount = 1"))) == (0, "2")


def test_a_long_expression_examines_fewer_messages_per_pull(client: FakeClient) -> None:
    expression = " OR ".join([LARGE] * 500)
    send_amounts(client, *([1] * 40))
    code, next_begin = position(client.pull("T1", **sql(expression)))
    assert code == 20
    assert 16 <= int(next_begin) < 40


# -------------------------------------------------------------------- waiting


def test_only_a_matching_message_wakes_a_waiting_filtered_pull(client: FakeClient) -> None:
    waiting, in_vain = held_pull(client, **sql(LARGE)), held_pull(client, ms=1_000, **sql("amount > 1000"))
    other = client.broker.client("other")
    send_amounts(other, 1, None, 99)
    assert not client.has_answer(waiting)
    send_amounts(other, 200)
    answer = client.answered(waiting)
    assert (bodies(answer), position(answer)) == ([b"200"], (0, "4"))
    client.broker.advance(1.0)
    assert position(client.answered(in_vain)) == (19, "4"), "behind the rejected messages"


@pytest.mark.parametrize("fields", [sql(LARGE), {"subscription": "red"}])
def test_a_waiting_pull_finds_a_match_behind_the_examination_limit(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    """Everything that arrived is examined, because nothing else would wake the pull."""
    waiting = held_pull(client, **fields)
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
    assert position(client.call_from_disk(11, pull_ext("T1", **sql("amount > 1000")))) == (20, "2")


async def answer_to(client: FakeClient, waiting: int) -> RemotingCommand:
    """Return the answer to a pull, which is made in a task."""
    while not client.has_answer(waiting):
        client.broker.settle()
        await asyncio.sleep(0)
    return client.answered(waiting)


async def test_a_waiting_pull_is_answered_from_the_disk(client: FakeClient) -> None:
    waiting = held_pull(client, **sql(LARGE))
    client.broker.memory.node.cold = True
    send_amounts(client.broker.client("other"), 1, 200)
    assert position(await answer_to(client, waiting)) == (20, "1")


async def test_a_waiting_pull_is_examined_once_if_its_messages_come_into_memory_meanwhile(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look reads its records from the disk. A second look in the same turn would answer 20 at once."""
    log = client.broker.service.parts[PullRequests]._log
    read, looks = log.read_nowait, list[int]()

    def cold_once(position: int, size: int) -> bytes | None:
        looks.append(position)
        return None if len(looks) == 1 else read(position, size)

    waiting = held_pull(client, **sql(LARGE))
    monkeypatch.setattr(log, "read_nowait", cold_once)
    send_amounts(client.broker.client("other"), 1)
    assert not client.has_answer(waiting)
    assert position(await answer_to(client, waiting)) == (20, "1")
    assert len(looks) == 1


def test_a_waiting_pull_with_trimmed_messages_is_repeated(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = held_pull(client, **sql(LARGE))
    monkeypatch.setattr(client.broker.service.parts[PullRequests]._log, "read_nowait", trimmed)
    send_amounts(client.broker.client("other"), 200)
    assert position(client.answered(waiting)) == (20, "0")


# -------------------------------------------------------------------- subscriptions


@pytest.mark.parametrize(("kind", "expression"), [("SQL92", LARGE), ("TAG", "a || b")])
def test_the_expression_may_come_with_the_heartbeat(client: FakeClient, kind: str, expression: str) -> None:
    client.send_message("T1", b"no", properties="amount\x011\x02TAGS\x01c\x02")
    client.send_message("T1", b"yes", properties="amount\x01200\x02TAGS\x01a\x02")
    beat(client, expression, kind=kind)
    assert bodies(client.pull("T1", sysFlag="0", subVersion="7")) == [b"yes"]


def test_a_syntax_error_of_an_expression_is_reported_with_its_place(client: FakeClient) -> None:
    beat(client, "amount >", kind="SQL92")
    for answer in (client.pull("T1", sysFlag="0"), client.pull("T1", **sql("amount >"))):
        assert_refused(answer, 23, "line 1, column 9: expected a property or a literal, found the end")


def test_a_refusal_of_an_unknown_or_old_subscription_names_topic_and_versions(client: FakeClient) -> None:
    beat(client, LARGE, kind="SQL92")
    client.broker.memory.create_topic("T2")
    for topic, group, code, words in (
        ("T1", "CG", 25, ("T1", "version 7", "version 8")),
        ("T2", "CG", 24, ("T2", "version 8")),
        ("T2", "other", 24, ("other", "T2", "version 8")),
    ):
        assert_refused(client.pull(topic, sysFlag="0", subVersion="8", consumerGroup=group), code, *words)


def check(client: FakeClient, **subscription: object) -> RemotingCommand:
    body = {"clientId": "c1", "group": "CG", "subscriptionData": {"topic": "T1", **subscription}, "namespace": None}
    return client.call(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())


def test_check_client_config_validates_the_expression_of_a_client(client: FakeClient) -> None:
    assert check(client, expressionType="SQL92", subString=LARGE).code == 0
    assert check(client, expressionType="TAG", subString="a || b", classFilterMode=False, subVersion=1).code == 0
    assert check(client, subString="*").code == 0
    assert_refused(check(client, expressionType="SQL92", subString="amount >"), 23, "column 9")
    assert check(client, expressionType="SQL92").code == 23
    assert check(client, expressionType="XPATH", subString="//a").code == 1
    for body in (b"{}", b"[", b'{"subscriptionData":{}}'):
        assert client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == 1


def test_property_filters_can_be_turned_off(make_broker: MakeBroker) -> None:
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
def test_an_expression_beyond_a_limit_is_refused_with_the_limit_and_counted(
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
    assert_refused(answered(bad), 23, str(spaced[key]))
    assert getattr(broker.counters, key) == 1


def test_max_filter_chars_also_limits_tag_expressions(make_broker: MakeBroker) -> None:
    client = make_broker(max_filter_chars=8).client()
    for expression, refused in (("red||tea", 0), ("red||teal", 1)):
        assert (client.pull("T1", subscription=expression).code == 23) == bool(refused)
        assert client.broker.counters.max_filter_chars == refused
