"""Promises to a consumer that pulls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from broker_group import BrokerGroup, client_of, running
from broker_in_process import Client
from msgspec.structs import replace
from served_broker import (
    FakeClient,
    MakeBroker,
    ServedBroker,
    assert_refused,
    bodies,
    make_group,
    pull_ext,
    records,
    send_ext,
    submit,
)

from dledger.errors import CorruptionError
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.pulling import earlier_reads
from dledger_broker.features.pulling.limits import MAX_HELD_BYTES, UNHEARD_S
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.frontend.forwarding import Forwarder
from dledger_broker.kernel import held_memory
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.frame import Frame
from dledger_remoting.record import RECORD_HEAD_BYTES
from tests.broker.features.pop.pop_calls import pop
from tests.broker.features.pulling.pull_calls import beat, held_pull, position, trimmed


@pytest.mark.parametrize(
    ("stored", "offset", "code", "next_begin"),
    [(3, 0, 0, 3), (3, 3, 19, 3), (3, 4, 21, 3), (0, 0, 19, 0), (0, 5, 21, 0)],
)
def test_every_answer_to_a_pull_has_four_offset_fields_and_the_status_of_the_offset(
    client: FakeClient, stored: int, offset: int, code: int, next_begin: int
) -> None:
    for _ in range(stored):
        client.send_message("T1")
    answer = client.pull("T1", offset=offset)
    assert position(answer) == (code, str(next_begin))
    assert answer.ext.keys() == {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}


def test_an_acknowledged_message_is_readable_at_once(client: FakeClient) -> None:
    for number in range(20):
        offset = int(client.send_message("T1", b"%d" % number).ext["queueOffset"])
        assert bodies(client.pull("T1", offset=offset)) == [b"%d" % number]


def test_a_pull_older_than_the_time_out_of_its_client_reads_and_commits_nothing(
    broker: ServedBroker, client: FakeClient
) -> None:
    broker.advance(100)
    client.send_message("T1")
    now = broker.service.requests._now()

    def pull_of(age_s: float) -> tuple[int, int | None]:
        command = RemotingCommand(
            11, opaque=7, ext=pull_ext("T1", sysFlag="7", commitOffset="1", suspendTimeoutMillis="15000")
        )
        client.in_flight += 1
        frame = Frame(0, encode_json_header(command), b"")
        broker.service.requests.receive_forwarded(client, frame, now - age_s)
        broker.settle()
        return client.answers[-1].code, broker.offsets.pending("CG", "T1", 0)

    assert pull_of(15 + UNHEARD_S + 1) == (2, None)
    assert pull_of(15 + UNHEARD_S - 1) == (0, 1)


def test_a_pull_returns_at_least_one_and_at_most_the_requested_messages(client: FakeClient) -> None:
    for _ in range(5):
        client.send_message("T1", b"x" * 100)
    for limits, count in (("2", 2), ("1", 1), ("0", 1), ("-1", 1)):
        answer = client.pull("T1", maxMsgNums=limits)
        assert (len(records(answer)), position(answer)) == (count, (0, str(count)))
    small = client.pull("T1", maxMsgBytes="1")
    assert (len(records(small)), position(small)) == (1, (0, "1"))
    pair = client.pull("T1", maxMsgBytes=str(3 * len(small.body) - 1))
    assert (bodies(pair), len(pair.body)) == ([b"x" * 100] * 2, 2 * len(small.body))


def test_messages_that_are_not_in_memory_come_from_the_disk(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1", b"old")
    client.pull("T1")
    broker.memory.node.cold = True
    assert bodies(client.call_from_disk(11, pull_ext("T1"))) == [b"old"]
    assert broker.counters.cold_reads == 1


def test_a_slow_read_of_a_deleted_topic_skips_nothing_of_the_next_topic_of_that_name(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the pull waits for the disk, its topic is made again. The file then read has only the new message."""
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
    assert (bodies(answer), position(answer)) == ([b"new"], (0, "1"))


@pytest.mark.parametrize("cold", [False, True])
def test_a_pull_that_meets_a_trim_skips_no_remaining_record(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)
    log = client.broker.service.parts[PullRequests]._log
    monkeypatch.setattr(log, "read_nowait", (lambda *_: None) if cold else trimmed)
    monkeypatch.setattr(log, "read", trimmed)
    answer = client.call_from_disk(11, pull_ext("T1", offset=1)) if cold else client.pull("T1", offset=1)
    assert position(answer) == (20, "1")


# ---- checks


def test_an_unknown_group_is_created_or_refused(make_broker: MakeBroker) -> None:
    broker = make_broker()
    assert broker.client().pull("T1").code == 19
    assert "CG" in broker.memory.machine.state.table(GROUPS).by_name
    assert make_broker(auto_create_group=False).client().pull("T1").code == 26


# ---- long polls


def test_a_held_pull_is_answered_by_a_message_in_its_queue_or_exactly_at_its_deadline(client: FakeClient) -> None:
    waiting, other = held_pull(client, ms=300), held_pull(client, queue_id=1, ms=300)
    assert (client.held, client.in_flight) == (2, 0)
    client.send_message("T1", b"news")
    assert bodies(client.answered(waiting)) == [b"news"]
    client.broker.advance(0.29)
    assert not client.has_answer(other)
    client.broker.advance(0.01)
    assert position(client.answered(other)) == (19, "0")
    assert (client.held, client.in_flight) == (0, 0)


def test_messages_that_the_filter_rejects_do_not_end_the_wait_and_are_skipped(client: FakeClient) -> None:
    waiting, in_vain = held_pull(client, subscription="a"), held_pull(client, subscription="c", ms=1_000)
    client.send_message("T1", properties="TAGS\x01b\x02")
    assert not client.has_answer(waiting)
    client.send_message("T1", b"mine", properties="TAGS\x01a\x02")
    assert bodies(client.answered(waiting)) == [b"mine"]
    client.broker.advance(1)
    assert position(client.answered(in_vain)) == (19, "2")


@pytest.mark.parametrize("ends", ["leadership", "topic"])
def test_held_pulls_are_answered_when_leadership_is_lost_or_their_topic_is_deleted(
    broker: ServedBroker, client: FakeClient, ends: str
) -> None:
    waiting = held_pull(client)
    if ends == "leadership":
        broker.memory.node.step_down()
        broker.settle()
    else:
        broker.memory.delete_topic("T1")
    assert client.answered(waiting).code == 19


@pytest.mark.parametrize("says_so", [False, True])
def test_a_reader_of_a_recreated_topic_begins_at_the_first_message(
    broker: ServedBroker, client: FakeClient, says_so: bool
) -> None:
    """A stock client is known by its connection. Our client names the creation of its offset, over any connection."""
    for _ in range(3):
        client.send_message("T1")
    created = client.call(31, {"topic": "T1", "queueId": "0"}).ext["topicCreated"]
    client.pull("T1", offset=2)
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    for _ in range(5):
        client.send_message("T1")
    fields = {"topicCreated": created} if says_so else {}
    reader = broker.client("client/2") if says_so else client
    late = reader.send(15, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "3", **fields})
    answer = reader.pull("T1", offset=3, **fields)
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == (21, "0", "5")
    broker.advance(broker.config.offset_flush_ms / 1000)
    assert client.call(14, {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}).ext["offset"] == "0"
    assert reader.answered(late).ext["topicCreated"] == answer.ext["topicCreated"] != created
    fields = {"topicCreated": answer.ext["topicCreated"]} if says_so else {}
    assert len(records(reader.pull("T1", offset=0, **fields))) == 5
    assert len(records(broker.client("client/3").pull("T1", offset=3))) == 2, "who knows no other one"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda broker: make_group(broker, consume_enable=False), 16),
        (lambda broker: put_topic(broker, perm=2), 16),
        (lambda broker: put_topic(broker, read_queue_nums=1), 29),
        (lambda broker: broker.groups.delete_group("CG", lambda _: None), 19),
    ],
    ids=["group paused", "topic closed", "queue gone", "group deleted"],
)
def test_a_held_pull_gets_no_message_after_its_group_or_topic_was_closed_or_removed(
    broker: ServedBroker, client: FakeClient, change: Callable[[ServedBroker], None], code: int
) -> None:
    waiting = held_pull(client, queue_id=3, ms=60_000)
    change(broker)
    broker.settle()
    assert not client.has_answer(waiting)
    client.send_message("T1", queue_id=3)
    answer = client.answered(waiting)
    assert (answer.code, answer.body) == (code, b"")


def test_a_held_pull_is_answered_with_an_error_if_its_message_cannot_be_read(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_nowait(position: int, size: int) -> NoReturn:
        raise CorruptionError(f"{size} bytes at {position} do not verify")

    waiting = held_pull(client)
    monkeypatch.setattr(client.broker.memory.node, "read_nowait", read_nowait)
    assert client.send_message("T1").code == 0
    assert_refused(client.answered(waiting), 1, "do not verify")


def put_topic(broker: ServedBroker, **changes: Any) -> None:
    config = broker.memory.machine.state.topics["T1"].config
    broker.memory.machine.proposals.put_topic(replace(config, **changes), lambda _: None)


def test_held_pulls_of_a_group_whose_members_changed_are_answered(broker: ServedBroker, client: FakeClient) -> None:
    waiting, others = held_pull(client), held_pull(client, consumerGroup="another")
    beat(broker.client())
    assert client.answered(waiting).code == 19
    assert not client.has_answer(others)
    assert (client.held, client.in_flight) == (1, 0)


@pytest.mark.parametrize("limit", ["number", "memory"])
def test_the_number_of_held_pulls_of_a_connection_and_the_memory_of_all_are_limited(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    broker = make_broker(**({"max_held_pulls": 2} if limit == "number" else {}))
    if limit == "memory":
        monkeypatch.setattr(held_memory, "MAX_BYTES", 4_200)
    first, *others = (broker.client(f"client/{number}") for number in range(4))
    clients = [first, *others] if limit == "memory" else [first] * 4
    pulls = [(client, held_pull(client)) for client in clients]
    waiting = [not client.has_answer(opaque) for client, opaque in pulls]
    assert (waiting[0], waiting[-1]) == (True, False)
    assert limit == "memory" or waiting == [True, True, False, False]
    assert broker.counters.max_held_pulls == waiting.count(False)
    first.send_message("T1")
    assert broker.service.requests.held.held_bytes == 0


def test_a_pull_of_many_bytes_is_not_kept_to_wait(client: FakeClient) -> None:
    waiting = {"sysFlag": "6", "suspendTimeoutMillis": "60000"}
    assert client.call(11, pull_ext("T1", **waiting, junk="x" * MAX_HELD_BYTES)).code == 19
    assert client.call(11, pull_ext("T1", **waiting), bytes(MAX_HELD_BYTES)).code == 19
    assert client.held == 0


def test_pulls_of_a_closed_connection_are_forgotten(broker: ServedBroker, client: FakeClient) -> None:
    waiting = held_pull(client)
    client.is_open = False
    broker.client("other").send_message("T1")
    assert not client.has_answer(waiting)
    assert len(broker.service.parts[PullRequests].held) == 0


def test_early_answers_leave_no_deadlines_behind(broker: ServedBroker, client: FakeClient) -> None:
    for number in range(1_500):
        waiting = held_pull(client, queueOffset=str(number), ms=60_000)
        submit(client, 310, send_ext("T1"), b"x")
        assert client.has_answer(waiting)
        client.answers.clear()
    assert len(broker.service.parts[PullRequests].held._deadlines) < 1_100


# ---- followers


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the codes of requests that are forwarded to the leader."""
    codes: list[int] = []
    monkeypatch.setattr(Forwarder, "pass_on", lambda _, request: codes.append(request.code))
    return codes


def test_a_follower_serves_stored_messages_and_passes_on_pulls_beyond_its_knowledge(
    broker: ServedBroker, client: FakeClient, passed: list[int]
) -> None:
    client.pull("T1")
    client.send_message("T1", b"known")
    broker.memory.node.step_down()
    broker.settle()
    assert bodies(client.pull("T1")) == [b"known"]
    assert client.pull("T1", offset=1).code == 19
    assert passed == []
    client.send(11, pull_ext("T1", offset=2))
    client.send(11, pull_ext("Unknown"))
    client.send(11, {**pull_ext("T1"), "consumerGroup": "New"})
    assert passed == [RequestCode.PULL_MESSAGE] * 3


def test_a_follower_passes_on_a_pull_whose_queue_is_not_rebuilt_yet(client: FakeClient, passed: list[int]) -> None:
    client.pull("T1")
    client.send_message("T1", b"known")
    client.broker.memory.node.step_down()
    client.broker.settle()
    client.broker.memory.queue("T1").view.reset(0, 0)
    client.send(11, pull_ext("T1"))
    assert passed == [RequestCode.PULL_MESSAGE]
    here = pull_ext("T1", roles="follower", minCommit="1")
    assert_refused(client.call(RequestCode.LITE_PULL_MESSAGE, here), 20111, "not rebuilt")
    assert client.call(RequestCode.LITE_PULL_MESSAGE, here | {"queueOffset": "1"}).code == 19


def test_only_a_confirmed_leader_answers_that_messages_were_trimmed(client: FakeClient, passed: list[int]) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)
    client.broker.memory.log.first_position = records(client.pull("T1", offset=2))[0].physical_offset
    assert position(client.pull("T1")) == (20, "2")
    assert len(records(client.pull("T1", offset=2))) == 1
    client.broker.memory.node.step_down()
    client.broker.settle()
    client.send(11, pull_ext("T1"))
    assert passed == [RequestCode.PULL_MESSAGE]


def test_a_bound_pull_is_answered_by_this_node_or_refused(client: FakeClient) -> None:
    client.send_message("T1")
    ext = pull_ext("T1", roles="follower,leader", minCommit="1")
    for changed, code in (
        ({}, 0),
        ({"queueOffset": "9"}, 21),
        ({"minCommit": str(2**40)}, 20111),
        ({"roles": "follower,learner"}, 20110),
    ):
        assert client.call(RequestCode.LITE_PULL_MESSAGE, ext | changed).code == code


def test_a_bound_pull_reads_the_rest_of_a_queue_that_its_topic_has_lost(client: FakeClient) -> None:
    client.send_message("T1", b"left", queue_id=3)
    fewer = {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T1", "defaultTopic": "TBW102", **fewer})
    bound = {"roles": "leader", "minCommit": "1"}
    assert client.call(RequestCode.LITE_PULL_MESSAGE, pull_ext("T1", 3)).code == 29
    assert bodies(client.call(RequestCode.LITE_PULL_MESSAGE, pull_ext("T1", 3, **bound))) == [b"left"]
    assert client.call(RequestCode.LITE_PULL_MESSAGE, pull_ext("T1", 9, **bound)).code == 29


def test_a_damaged_record_found_by_a_verifying_pull_is_reported_for_repair(client: FakeClient) -> None:
    for body in (b"one", b"two"):
        client.send_message("T1", body)
    ext = pull_ext("T1", roles="leader", minCommit="1", verify="true")
    assert len(records(client.call_from_disk(RequestCode.LITE_PULL_MESSAGE, ext))) == 2
    assert client.broker.memory.node.failed_reads == []
    place = client.broker.memory.log.data.index(b"two")
    client.broker.memory.log.data[place] ^= 1
    assert_refused(client.call_from_disk(RequestCode.LITE_PULL_MESSAGE, ext), 20111, "damaged here")
    assert client.broker.memory.node.failed_reads == [place - RECORD_HEAD_BYTES]


async def client_of_leader(group: BrokerGroup, *, start: int, messages: int) -> Client:
    """Return a client of the leader, whose log begins at the offset `start` of a queue with so many messages."""
    leader = await group.leader()
    client = await client_of(leader)
    for number in range(messages):
        assert (await client.send(b"%d" % number)).code == ResponseCode.SUCCESS
    queue = leader.machine.queue("T1", 0)
    assert queue is not None
    queue.view.start = start
    return client


async def pulled_from_elsewhere(client: Client, offset: int) -> RemotingCommand:
    """Pull until another node has applied the messages. Until then, no answer may send the reader elsewhere."""
    async with asyncio.timeout(20):
        while (answer := await client.pull(offset)).code != ResponseCode.SUCCESS:
            assert answer.code != ResponseCode.PULL_OFFSET_MOVED
            await asyncio.sleep(0.02)
    return answer


async def test_a_pull_below_the_start_of_the_leaders_log_is_answered_by_a_node_with_more_log(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await client_of_leader(group, start=6, messages=10)
    assert (await client.pull(2)).code == ResponseCode.PULL_OFFSET_MOVED, "nobody begins earlier: no veto"
    follower = (await group.followers())[0]
    monkeypatch.setattr(earlier_reads, "earlier_nodes", lambda log: [follower.config.node_id])
    assert bodies(await pulled_from_elsewhere(client, 2)) == [b"%d" % number for number in range(2, 10)]
    least = await client.call(RequestCode.GET_MIN_OFFSET, {"topic": "T1", "queueId": "0"})
    assert least.ext["offset"] == "0", "the leader answers for the group"
    client.close()


async def test_a_node_with_more_log_that_cannot_read_it_sends_no_reader_past_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = PullRequests._read_for_leader, [True] * 2

    def read_for_leader(pulls: PullRequests, request: Request) -> None:
        if failures:
            failures.pop()
            raise CorruptionError("its disk cannot read that now")
        read(pulls, request)

    monkeypatch.setattr(PullRequests, "_read_for_leader", read_for_leader)  # before the nodes are made
    async with running(BrokerGroup(tmp_path)) as group:
        client = await client_of_leader(group, start=3, messages=4)
        names = [broker.config.node_id for broker in await group.followers()]
        monkeypatch.setattr(earlier_reads, "earlier_nodes", lambda log: names)
        assert (await client.pull(0)).code == ResponseCode.SYSTEM_BUSY, "neither can read it"
        assert failures == []
        failures.append(True)
        await pulled_from_elsewhere(client, 0)
        assert failures == []
        client.close()


@pytest.mark.parametrize(
    ("first_position", "silent_ms", "is_voter", "skips"),
    [
        (0, 5_000, True, False),
        (0, 0, True, False),  # there is no link to it
        (-1, 5_000, True, False),  # it has not told a new leader where its log begins
        (0, 599_000, True, False),  # ten minutes, as promised
        (0, 601_000, True, True),
        (1, 5_000, True, True),
        (0, 5_000, False, True),
    ],
)
def test_no_reader_skips_messages_that_a_silent_voter_may_keep(
    client: FakeClient, first_position: int, silent_ms: int, is_voter: bool, skips: bool
) -> None:
    memory, queue = client.broker.put_group().memory, client.broker.memory.queue("T1")
    for _ in range(5):
        client.send_message("T1")
    client.broker.see_peer(first_position, silent_ms, is_voter=is_voter)
    queue.view.start, memory.log.first_position = 3, 1
    skipped, busy = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.SYSTEM_BUSY
    assert client.pull("T1", offset=1).code == (skipped if skips else busy)
    queue.first_offset = 1
    assert position(client.pull("T1", offset=0)) == (skipped, "1")
    assert bool(pop(client, queueId="0")) == skips
