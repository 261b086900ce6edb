"""Promises to a consumer that pulls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, records, send_ext

from dledger.errors import CorruptionError, TrimmedError
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.pulling.limits import MAX_HELD_BYTES
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.frontend.forwarding import Forwarder
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import decode_heartbeat
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

HEARTBEAT = (
    b'{"clientID":"c1","consumerDataSet":[{"groupName":"CG","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    b'"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"T1","subString":"a || b",'
    b'"subVersion":5}]}]}'
)


def test_every_answer_about_offsets_carries_all_four_fields(client: FakeClient) -> None:
    client.send_message("T1")
    for offset in (0, 1, 2):
        answer = client.pull("T1", offset=offset)
        assert set(answer.ext) == {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}


@pytest.mark.parametrize(
    ("stored", "offset", "code", "next_begin"),
    [(3, 0, 0, 3), (3, 3, 19, 3), (3, 4, 21, 3), (0, 0, 19, 0), (0, 5, 21, 0)],
)
def test_the_status_table(client: FakeClient, stored: int, offset: int, code: int, next_begin: int) -> None:
    for _ in range(stored):
        client.send_message("T1")
    answer = client.pull("T1", offset=offset)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (code, str(next_begin))


def test_an_acknowledged_message_is_readable_at_once(client: FakeClient) -> None:
    for number in range(20):
        offset = int(client.send_message("T1", b"%d" % number).ext["queueOffset"])
        assert [record.body for record in records(client.pull("T1", offset=offset))] == [b"%d" % number]


def test_a_tag_filter_skips_and_moves_on(client: FakeClient) -> None:
    client.send_message("T1", b"a", properties="TAGS\x01a\x02")
    client.send_message("T1", b"b", properties="TAGS\x01b\x02")
    found = client.pull("T1", subscription="b")
    assert [record.body for record in records(found)] == [b"b"]
    nothing = client.pull("T1", subscription="c")
    assert (nothing.code, nothing.ext["nextBeginOffset"]) == (20, "2")


def test_at_most_as_many_messages_as_asked_for_and_at_least_one(client: FakeClient) -> None:
    for _ in range(5):
        client.send_message("T1", b"x" * 100)
    assert len(records(client.pull("T1", maxMsgNums="2"))) == 2
    assert len(records(client.pull("T1", maxMsgNums="0"))) == 1
    assert len(records(client.pull("T1", maxMsgBytes="10"))) == 1


def test_messages_that_are_not_in_memory_come_from_the_disk(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1", b"old")
    client.pull("T1")
    broker.memory.node.cold = True
    assert [record.body for record in records(client.call_from_disk(11, pull_ext("T1")))] == [b"old"]
    assert broker.counters.cold_reads == 1


def test_a_slow_read_of_a_deleted_topic_skips_nothing_of_the_next_topic_of_that_name(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A pull waits for the disk; 2. its topic is deleted and made again, and gets a message; 3. the file that is
    then read holds that message and nothing behind it.
    """
    memory = broker.memory
    slow: list[Any] = []
    for _ in range(10):
        client.send_message("T1", b"old")
    client.pull("T1")
    memory.flush_views()
    memory.flush_views()
    monkeypatch.setattr(memory.machine.queues, "read", lambda *_: None)
    monkeypatch.setattr(memory.env, "run_blocking", lambda *work: slow.append(work))

    async def scenario() -> RemotingCommand:
        pull = client.send(11, pull_ext("T1"))
        await asyncio.sleep(0)
        monkeypatch.undo()
        memory.delete_topic("T1")
        memory.create_topic("T1")
        client.send_message("T1", b"new")
        memory.flush_views()
        for work in slow:
            memory.env.run_blocking(*work)
        while not client.has_answer(pull):
            memory.env.run_ready()
            await asyncio.sleep(0)
        return client.answered(pull)

    answer = asyncio.run(scenario())
    assert [record.body for record in records(answer)] == [b"new"]
    assert answer.ext["nextBeginOffset"] == "1"


@pytest.mark.parametrize("cold", [False, True])
def test_a_trim_that_takes_some_of_the_records_skips_none_of_the_others(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)

    def trimmed(*_: object) -> NoReturn:
        raise TrimmedError("the log starts behind the first of them")

    log = broker.service.parts[PullRequests]._log
    monkeypatch.setattr(log, "read_nowait", (lambda *_: None) if cold else trimmed)
    monkeypatch.setattr(log, "read", trimmed)
    answer = client.call_from_disk(11, pull_ext("T1", offset=1)) if cold else client.pull("T1", offset=1)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "1")


# ---- checks


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Unknown"}, 17),
        ({"topic": "WriteOnly"}, 16),
        ({"queueId": "4"}, 29),
        ({"queueId": "-1"}, 29),
        ({"consumerGroup": "Stopped"}, 16),
        ({"consumerGroup": "bad group"}, 29),
        ({"sysFlag": "0"}, 24),
        ({"subscription": "||"}, 23),
        ({"expressionType": "SQL92"}, 23),
        ({"expressionType": "XPATH"}, 1),
        ({"sysFlag": "12"}, 1),
        ({"queueOffset": "x"}, 1),
    ],
)
def test_a_bad_pull_is_refused_with_rocketmqs_code(
    broker: ServedBroker, client: FakeClient, fields: dict[str, str], code: int
) -> None:
    proposals = broker.memory.machine.proposals
    proposals.put_topic(TopicConfig("WriteOnly", 4, 4, perm=2), lambda _: None)
    broker.groups.put_group(SubscriptionGroupConfig("Stopped", consume_enable=False), lambda _: None)
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    broker.settle()
    answer = client.call(11, {**pull_ext("T1"), **fields})
    assert answer.code == code
    assert answer.remark


def test_an_unknown_group_is_created_or_refused(make_broker: MakeBroker) -> None:
    broker = make_broker()
    assert broker.client().pull("T1").code == 19
    assert "CG" in broker.memory.machine.state.table(GROUPS).by_name
    assert make_broker(auto_create_group=False).client().pull("T1").code == 26


def test_without_an_expression_the_heartbeats_subscription_filters(broker: ServedBroker) -> None:
    client = heartbeating_client(broker)
    client.send_message("T1", b"a", properties="TAGS\x01a\x02")
    client.send_message("T1", b"c", properties="TAGS\x01c\x02")
    found = client.pull("T1", sysFlag="0", subVersion="5")
    assert [record.body for record in records(found)] == [b"a"]
    assert client.pull("T1", sysFlag="0", subVersion="6").code == 25


def heartbeating_client(broker: ServedBroker) -> FakeClient:
    client = broker.client()
    broker.service.gossip.local.heartbeat(client, decode_heartbeat(HEARTBEAT), 0, 479, broker.memory.env.now())
    broker.settle()
    return client


# ---- long polls


def held_pull(client: FakeClient, queue_id: int = 0, *, ms: int = 1_000, **fields: str) -> int:
    ext = pull_ext("T1", queue_id, sysFlag="6", suspendTimeoutMillis=str(ms), **fields)
    opaque = client.send(11, ext)
    client.broker.settle()
    return opaque


def test_a_held_pull_is_answered_by_the_message_it_waits_for(broker: ServedBroker, client: FakeClient) -> None:
    waiting, other = held_pull(client), held_pull(client, queue_id=1)
    broker.settle()
    assert (client.held, client.in_flight) == (2, 0)
    client.send_message("T1", b"news")
    assert [record.body for record in records(client.answered(waiting))] == [b"news"]
    assert not client.has_answer(other)


def test_a_held_pull_is_answered_exactly_at_its_deadline(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client, ms=300)
    broker.advance(0.29)
    assert not client.has_answer(waiting)
    broker.advance(0.01)
    answer = client.answered(waiting)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "0")
    assert (client.held, client.in_flight) == (0, 0)


def test_messages_that_the_filter_rejects_do_not_end_the_wait(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client, subscription="a")
    client.send_message("T1", properties="TAGS\x01b\x02")
    assert not client.has_answer(waiting)
    client.send_message("T1", b"mine", properties="TAGS\x01a\x02")
    assert [record.body for record in records(client.answered(waiting))] == [b"mine"]


def test_an_unanswered_wait_goes_on_behind_what_the_filter_rejected(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client, subscription="a")
    client.send_message("T1", properties="TAGS\x01b\x02")
    broker.advance(1)
    answer = client.answered(waiting)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")


def test_held_pulls_are_answered_when_leadership_is_lost(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client)
    broker.settle()
    broker.memory.node.step_down()
    broker.settle()
    assert client.answered(waiting).code == 19


def test_held_pulls_of_a_deleted_topic_are_answered(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client)
    broker.settle()
    broker.memory.delete_topic("T1")
    assert client.answered(waiting).code == 19


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda broker: put_group(broker, consume_enable=False), 16),
        (lambda broker: put_topic(broker, perm=2), 16),
        (lambda broker: put_topic(broker, read_queue_nums=1), 29),
        (lambda broker: broker.groups.delete_group("CG", lambda _: None), 19),
    ],
    ids=["group paused", "topic closed", "queue gone", "group deleted"],
)
def test_what_comes_after_a_change_is_not_for_a_pull_that_waited(
    broker: ServedBroker, client: FakeClient, change: Callable[[ServedBroker], None], code: int
) -> None:
    waiting = held_pull(client, queue_id=3, ms=60_000)
    change(broker)
    broker.settle()
    assert not client.has_answer(waiting)
    client.send_message("T1", queue_id=3)
    answer = client.answered(waiting)
    assert (answer.code, answer.body) == (code, b"")


def test_a_pull_that_waited_and_whose_message_cannot_be_read_is_told_and_ends_nothing(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = held_pull(client, ms=60_000)

    def read_nowait(position: int, size: int) -> NoReturn:
        raise CorruptionError(f"{size} bytes at {position} do not verify")

    monkeypatch.setattr(broker.memory.node, "read_nowait", read_nowait)
    assert client.send_message("T1").code == 0
    answer = client.answered(waiting)
    assert (answer.code, "do not verify" in (answer.remark or "")) == (1, True)


def put_group(broker: ServedBroker, **changes: Any) -> None:
    broker.groups.put_group(SubscriptionGroupConfig("CG", **changes), lambda _: None)


def put_topic(broker: ServedBroker, **changes: Any) -> None:
    config = broker.memory.machine.state.topics["T1"].config
    broker.memory.machine.proposals.put_topic(replace(config, **changes), lambda _: None)


def test_held_pulls_of_a_group_whose_members_changed_are_answered(broker: ServedBroker, client: FakeClient) -> None:
    waiting, others = held_pull(client), held_pull(client, consumerGroup="another")
    heartbeating_client(broker)
    assert client.answered(waiting).code == 19
    assert not client.has_answer(others)
    assert (client.held, client.in_flight) == (1, 0)


def test_one_pull_more_than_may_wait_is_answered_at_once(make_broker: MakeBroker) -> None:
    broker = make_broker(max_held_pulls=2)
    client = broker.client()
    opaques = [held_pull(client, queue_id) for queue_id in range(3)]
    broker.settle()
    assert [client.has_answer(opaque) for opaque in opaques] == [False, False, True]
    assert broker.counters.max_held_pulls == 1


def test_a_pull_of_many_bytes_is_not_kept_to_wait(client: FakeClient) -> None:
    waiting = {"sysFlag": "6", "suspendTimeoutMillis": "60000"}
    assert client.call(11, pull_ext("T1", **waiting, junk="x" * MAX_HELD_BYTES)).code == 19
    assert client.call(11, pull_ext("T1", **waiting), bytes(MAX_HELD_BYTES)).code == 19
    assert client.held == 0


def test_pulls_of_a_closed_connection_are_forgotten(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client)
    broker.settle()
    client.is_open = False
    broker.client("other").send_message("T1")
    assert not client.has_answer(waiting)
    assert len(broker.service.parts[PullRequests].held) == 0


def test_early_answers_leave_no_deadlines_behind(broker: ServedBroker, client: FakeClient) -> None:
    for number in range(1_500):
        waiting = held_pull(client, queueOffset=str(number), ms=60_000)
        client.send(310, send_ext("T1"), b"x")
        broker.settle()
        assert client.has_answer(waiting)
        client.answers.clear()
    assert len(broker.service.parts[PullRequests].held._deadlines) < 1_100


# ---- followers


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes of requests that were passed on to the leader."""
    codes: list[int] = []
    monkeypatch.setattr(Forwarder, "pass_on", lambda _, request: codes.append(request.code))
    return codes


def test_a_follower_serves_what_it_has_and_passes_on_what_it_cannot_know(
    broker: ServedBroker, client: FakeClient, passed: list[int]
) -> None:
    client.pull("T1")
    client.send_message("T1", b"known")
    broker.memory.node.step_down()
    broker.settle()
    assert [record.body for record in records(client.pull("T1"))] == [b"known"]
    assert client.pull("T1", offset=1).code == 19
    assert passed == []
    client.send(11, pull_ext("T1", offset=2))
    client.send(11, pull_ext("Unknown"))
    client.send(11, {**pull_ext("T1"), "consumerGroup": "New"})
    assert passed == [RequestCode.PULL_MESSAGE] * 3


def test_what_a_node_has_not_rebuilt_yet_is_asked_of_others(
    broker: ServedBroker, client: FakeClient, passed: list[int]
) -> None:
    client.pull("T1")
    client.send_message("T1", b"known")
    broker.memory.node.step_down()
    broker.settle()
    broker.memory.queue("T1").view.reset(0, 0)
    client.send(11, pull_ext("T1"))
    assert passed == [RequestCode.PULL_MESSAGE]
    here = pull_ext("T1", roles="follower", minCommit="1")
    refused = client.call(RequestCode.LITE_PULL_MESSAGE, here)
    assert refused.code == 20111
    assert "not rebuilt" in (refused.remark or "")
    assert client.call(RequestCode.LITE_PULL_MESSAGE, here | {"queueOffset": "1"}).code == 19


def test_that_messages_are_gone_is_said_by_a_confirmed_leader_only(
    broker: ServedBroker, client: FakeClient, passed: list[int]
) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)
    third = client.pull("T1", offset=2)
    broker.memory.log.first_position = records(third)[0].physical_offset
    answer = client.pull("T1")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "2")
    assert len(records(client.pull("T1", offset=2))) == 1
    broker.memory.node.step_down()
    broker.settle()
    client.send(11, pull_ext("T1"))
    assert passed == [RequestCode.PULL_MESSAGE]


def test_a_pull_that_needs_the_log_so_far_is_answered_here_or_refused(client: FakeClient) -> None:
    client.send_message("T1")
    ext = pull_ext("T1", roles="follower,leader", minCommit="1")
    assert client.call(RequestCode.LITE_PULL_MESSAGE, ext).code == 0
    assert client.call(RequestCode.LITE_PULL_MESSAGE, ext | {"queueOffset": "9"}).code == 21
    assert client.call(RequestCode.LITE_PULL_MESSAGE, ext | {"minCommit": str(2**40)}).code == 20111
    assert client.call(RequestCode.LITE_PULL_MESSAGE, ext | {"roles": "follower,learner"}).code == 20110
