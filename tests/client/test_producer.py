"""Promises of a producer about single messages and their failures."""

from __future__ import annotations

import asyncio
import math
import zlib

import pytest
from client_fakes import CLOSE, HandClock, fake_cluster, refusing, until

from dledger_client import Admin, ClientClosedError, InvalidArgumentError, Message, MessageQueue, Producer, SendError
from dledger_client.cluster.leaders import PROBE_INTERVAL_SECONDS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import SYS_COMPRESSED
from dledger_remoting.topics import DEFAULT_TOPIC_QUEUES

CLUSTER = {"topics": {"T": 4}}
SEND = RequestCode.SEND_MESSAGE_V2
BUSY = refusing(ResponseCode.SYSTEM_BUSY, "busy")
LOST = refusing(ResponseCode.SYSTEM_ERROR, "lost", outcome="unknown")


async def test_a_send_returns_the_place_of_its_message(cluster, producer):
    first = await producer.send("T", b"one", key="k1", tags="red", properties={"colour": "deep"})
    [stored] = cluster.group.queues["T", first.queue_id]
    assert (first.topic, first.broker_group, first.queue_offset, first.replicated) == ("T", "broker-a", 0, True)
    properties = parse_properties(stored.properties)
    assert properties == {"UNIQ_KEY": first.message_id, "KEYS": "k1", "TAGS": "red", "colour": "deep"}
    assert len(first.offset_message_id) == 32


PLACE = {"msgId": "1", "queueId": "0", "queueOffset": "0"}
WRONG_PLACES = [{}, PLACE | {"queueOffset": "first"}, PLACE | {"queueOffset": "9" * 5000}, PLACE | {"queueId": ""}]
FAILURES = [
    *(({}, [refusing(0, "", **place)], "unknown", 1, "expected a") for place in WRONG_PLACES),
    ({"retry_unknown": False}, [lambda _: CLOSE], "unknown", 1, None),
    ({}, [refusing(ResponseCode.NO_PERMISSION, "read only")], "not_sent", 1, "read only"),
    ({}, [LOST, refusing(ResponseCode.MESSAGE_ILLEGAL)], "unknown", 2, f"{ResponseCode.MESSAGE_ILLEGAL:d}"),
]
"""Options, answers of the leader, and the outcome of a send, its number of attempts, and the words of its error."""


@pytest.mark.parametrize(("options", "answers", "outcome", "attempts", "words"), FAILURES)
async def test_a_failed_send_tells_its_outcome_and_is_repeated_only_if_that_helps(
    cluster, options, answers, outcome, attempts, words
):
    cluster.group.nodes[0].answer_in_turn(SEND, *answers)
    async with Producer(cluster.namesrv, **options) as producer:
        with pytest.raises(SendError, match=words) as failure:
            await producer.send("T", b"one")
    assert (failure.value.outcome, failure.value.attempts) == (outcome, attempts)


async def test_queues_are_taken_in_turn(producer):
    results = [await producer.send("T", b"x") for _ in range(8)]
    assert [result.queue_id for result in results] == [0, 1, 2, 3] * 2


async def test_a_send_follows_a_refusal_to_the_named_leader(cluster, producer):
    await producer.send("T", b"one")
    await cluster.group.elect(cluster.group.nodes[1], notify=False, register=False)
    await producer.send("T", b"two")
    await producer.send("T", b"three")
    assert cluster.group.bodies("T") == [b"one", b"two", b"three"]
    assert cluster.group.nodes[1].codes().count(SEND) == 2


async def test_a_producer_follows_a_notice_of_a_new_leader(cluster, producer):
    old, new, _ = cluster.group.nodes
    await producer.send("T", b"one")
    await until(lambda: new.notified)
    await cluster.group.elect(new, register=False)
    await until(lambda: producer._core.routes.group("broker-a").leader == new.address)
    sent = old.codes().count(SEND)
    await producer.send("T", b"two")
    assert old.codes().count(SEND) == sent


async def test_while_the_leader_is_unknown_waiting_sends_do_not_flood_the_followers(cluster, producer):
    await producer.send("T", b"one")

    def asked() -> int:
        return sum(node.codes().count(SEND) for node in cluster.group.nodes)

    with HandClock() as clock:
        cluster.group.leader = None
        waiting = [asyncio.create_task(producer.send("T", b"x", timeout=3600)) for _ in range(200)]
        for probes in range(1, 11):
            await clock.until(lambda probes=probes: asked() >= 1 + 200 + probes)
            assert asked() == 1 + 200 + probes
            clock.advance(PROBE_INTERVAL_SECONDS)
    await cluster.group.elect(cluster.group.nodes[1])
    await asyncio.gather(*waiting)


async def test_a_caller_that_slows_down_by_itself_is_told_of_a_busy_broker_at_once(cluster):
    cluster.answer(RequestCode.SEND_MESSAGE_V2, BUSY)
    async with Producer(cluster.namesrv, retry_busy=False) as producer:
        with pytest.raises(SendError) as failure:
            await producer.send("T", b"x")
    assert (failure.value.outcome, failure.value.code, failure.value.attempts) == (
        "not_sent",
        ResponseCode.SYSTEM_BUSY,
        1,
    )


async def test_a_busy_broker_is_asked_again_until_it_takes_the_message(cluster, producer):
    leader = cluster.group.nodes[0]
    leader.answer_in_turn(SEND, BUSY, BUSY, BUSY, leader._send)
    await producer.send("T", b"one")
    assert cluster.group.bodies("T") == [b"one"]


async def test_all_attempts_of_a_send_share_one_deadline_and_fail_as_not_sent(cluster, producer):
    await producer.send("T", b"warm up")
    leader = cluster.group.nodes[0]
    leader.on[SEND] = BUSY
    connection = producer._core.pool.peek(leader.address)
    with HandClock() as clock:
        sending = asyncio.create_task(producer.send("T", b"one", timeout=2.0))
        await clock.run_between_attempts(sending, [connection])
    with pytest.raises(SendError) as failure:
        await sending
    assert (failure.value.outcome, failure.value.code) == ("not_sent", ResponseCode.SYSTEM_BUSY)
    assert failure.value.attempts > 1


async def test_a_lost_answer_is_repeated_by_default_and_may_store_twice(cluster, producer):
    leader = cluster.group.nodes[0]
    leader.answer_in_turn(SEND, lambda command: leader._send(command) and CLOSE, leader._send)
    await producer.send("T", b"one")
    assert cluster.group.bodies("T") == [b"one", b"one"]


async def test_a_silent_leader_is_given_up_shortly_after_a_successor_is_known(cluster):
    async with Producer(cluster.namesrv, attempt_timeout=60, timeout=120) as producer:
        old, new, _ = cluster.group.nodes
        await producer.send("T", b"one")
        await until(lambda: new.notified)
        old.on[SEND] = lambda _: None
        waiting = asyncio.create_task(producer.send("T", b"two"))
        await until(lambda: old.codes().count(SEND) == 2)
        await cluster.group.elect(new)
        await waiting
        assert cluster.group.bodies("T") == [b"one", b"two"]


async def test_sends_go_to_another_broker_group_while_one_has_no_leader():
    async with fake_cluster(groups=2) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm up")
        cluster.groups[0].leader = None
        results = [await producer.send("T", b"x") for _ in range(12)]
        assert {result.broker_group for result in results} == {"broker-b"}


async def test_a_blank_separates_keys_and_is_refused_inside_a_listed_key(cluster, producer):
    with pytest.raises(InvalidArgumentError, match="key 'b c': a blank separates keys"):
        await producer.send("T", b"x", key=["a", "b c"])
    await producer.send("T", b"x", key="a b")
    [record] = [record for records in cluster.group.queues.values() for record in records]
    assert parse_properties(record.properties)["KEYS"] == "a b"


async def test_a_unique_key_that_the_caller_gives_is_sent():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        single = await producer.send("T", b"a", unique_key="mine")
        batch = await producer.send_batch("T", [Message(b"b", unique_key="other"), b"c"])
        keys = [parse_properties(record.properties)["UNIQ_KEY"] for record in cluster.group.queues["T", 0]]
        assert keys[:2] == ["mine", "other"]
        assert keys == [result.message_id for result in (single, *batch)]
        with pytest.raises(InvalidArgumentError, match="unique key"):
            await producer.send("T", b"d", unique_key="")


async def test_large_bodies_are_compressed_and_small_or_incompressible_ones_are_not():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", b"x" * 5000)
        await producer.send("T", b"x" * 4096)
        large, small = cluster.group.queues["T", 0]
        assert large.sys_flag & SYS_COMPRESSED
        assert zlib.decompress(large.body) == b"x" * 5000
        assert not small.sys_flag & SYS_COMPRESSED
        assert len(small.body) == 4096


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("a topic", {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("T", {"properties": {"TAGS": "a"}}),
        ("T", {"properties": {"a\x01b": "c"}}),
        ("T", {"key": "a\x02"}),
        ("T", {"properties": {"a": "x" * 40_000}}),
    ],
)
async def test_invalid_messages_are_refused_before_they_are_sent(cluster, producer, topic, options):
    with pytest.raises(InvalidArgumentError):
        await producer.send(topic, b"x", **options)
    with pytest.raises(InvalidArgumentError):
        await producer.send("T", b"x" * (4 * 1024 * 1024 + 1))
    assert cluster.group.nodes[0].codes().count(SEND) == 0


async def test_a_batch_is_stored_in_order_in_one_queue_and_split_by_size(cluster):
    async with Producer(cluster.namesrv, max_batch_bytes=2000) as producer:
        messages = [Message(b"%04d" % number * 50, key=str(number)) for number in range(40)]
        results = await producer.send_batch("T", messages)
        assert cluster.group.bodies("T") == [message.body for message in messages]
        assert [result.queue_offset for result in results] == list(range(40))
        assert len({result.offset_message_id for result in results}) == 40
        assert cluster.group.nodes[0].codes().count(RequestCode.SEND_BATCH_MESSAGE) > 4


async def test_a_batch_that_fails_halfway_lists_the_stored_messages(cluster):
    async with Producer(cluster.namesrv, max_batch_bytes=2000) as producer:
        leader = cluster.group.nodes[0]

        leader.answer_in_turn(RequestCode.SEND_BATCH_MESSAGE, leader._send, refusing(ResponseCode.NO_PERMISSION))
        with pytest.raises(SendError) as failure:
            await producer.send_batch("T", [b"x" * 500] * 10)
        assert 0 < len(failure.value.stored) == len(cluster.group.bodies("T")) < 10


async def test_topics_created_by_a_send_or_by_an_admin_have_equally_many_queues():
    async with (
        fake_cluster(topics={"TBW102": 8}) as cluster,
        Producer(cluster.namesrv) as producer,
        Admin(cluster.namesrv) as admin,
    ):
        await producer.send("sent", b"x")
        await admin.create_topic("made")
        topics = cluster.name_server.topics
        assert topics["sent"] == topics["made"] == DEFAULT_TOPIC_QUEUES


async def test_a_send_to_a_missing_topic_raises_a_clear_error(producer):
    with pytest.raises(SendError, match="no route for topic 'fresh'"):
        await producer.send("fresh", b"x")


async def test_a_one_way_send_is_not_answered_and_arrives():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send_oneway("T", b"x")
        while not cluster.group.bodies("T"):
            await cluster.group.arrived.wait()
        [command] = cluster.group.nodes[0].requests(SEND)
        assert command.is_oneway
        assert "noForward" not in command.ext


async def test_closing_waits_for_all_requests_of_a_batch_and_for_sends_that_wait_for_their_turn():
    async with fake_cluster(topics={"T": 1}) as cluster:
        async with Producer(cluster.namesrv, max_batch_bytes=1000) as producer:
            await producer.send("T", b"warm up")
            batch = asyncio.create_task(producer.send_batch("T", [bytes(900)] * 8))
            sends = [asyncio.create_task(producer.send("T", b"x", ordering_key="k")) for _ in range(8)]
            while len(cluster.group.bodies("T")) < 2:
                await cluster.group.arrived.wait()
        assert len(batch.result()) == 8
        assert [task.exception() for task in sends] == [None] * 8
        with pytest.raises(ClientClosedError):
            await producer.send("T", b"too late")


async def test_a_cancelled_close_leaves_no_task_running():
    async with fake_cluster(topics={"T": 1}) as cluster:
        producer = Producer(cluster.namesrv)
        await producer.start()
        await producer.send("T", b"warm up")
        cluster.answer(SEND, lambda _: None)
        sending = asyncio.create_task(producer.send("T", b"never answered"))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.close()
        assert not {"heartbeat", "route poll", "route watch"} & {task.get_name() for task in asyncio.all_tasks()}
        with pytest.raises(SendError) as failed:
            await sending
        assert failed.value.outcome == "unknown"


async def test_oneway_sends_do_not_pile_up_in_the_connection():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm up")
        [connection] = [one for one in producer._core.pool.connections() if one.address == cluster.group.leader.address]
        for _ in range(100):
            await producer.send_oneway("T", b"x")
            assert len(connection._outgoing) <= 1
        await until(lambda: len(cluster.group.bodies("T")) == 101)


@pytest.mark.parametrize(("chosen", "sent"), [(None, "true"), (True, "true"), (False, None)])
async def test_a_send_is_idempotent_as_the_producer_or_the_call_says(cluster, chosen, sent):
    async with Producer(cluster.namesrv, idempotent=True) as producer:
        seen = []
        leader = cluster.group.nodes[0]
        for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):
            leader.on[code] = lambda command: (seen.append(command.ext.get("idempotent")), leader._send(command))[1]
        await producer.send("T", b"one", idempotent=chosen)
        await producer.send_batch("T", [b"two"], idempotent=chosen)
        assert seen == [sent, sent]


async def test_an_unanswered_idempotent_send_is_repeated_at_its_queue_with_its_key():
    async with fake_cluster(groups=2) as cluster, Producer(cluster.namesrv, retry_unknown=False) as producer:
        seen = []
        for group in cluster.groups:
            leader = group.nodes[0]

            def answer(command, leader=leader, group=group):
                seen.append((group.name, command.ext["e"], command.ext["i"]))
                return CLOSE if len(seen) < 4 else leader._send(command)

            leader.on[SEND] = answer
        result = await producer.send("T", b"one", idempotent=True)
        assert seen == [(result.broker_group, str(result.queue_id), seen[0][2])] * 4


@pytest.mark.parametrize(
    ("told", "lost", "twice"),
    [
        ({"remembered": "false"}, True, True),
        ({"remembered": "false"}, False, False),
        ({"remembered": "true", "repeated": "true"}, True, False),
        ({}, True, False),
    ],
)
async def test_a_send_result_tells_whether_the_message_may_be_stored_twice(cluster, told, lost, twice):
    async with Producer(cluster.namesrv, retry_unknown=False) as producer:
        leader = cluster.group.nodes[0]

        def answer(command):
            response = leader._send(command)
            response.ext.update(told)
            return response

        leader.answer_in_turn(SEND, *([lambda _: CLOSE] if lost else []), answer)
        result = await producer.send("T", b"one", idempotent=True)
        assert result.perhaps_twice is twice
        remembered = {"true": True, "false": False}.get(told.get("remembered"))
        assert (result.remembered, result.repeated) == (remembered, "repeated" in told)


async def test_an_idempotent_send_with_a_unique_key_goes_where_the_key_says(cluster):
    async with Producer(cluster.namesrv, idempotent=True) as producer:
        queues = {(await producer.send("T", b"x", unique_key="K1")).queue_id for _ in range(5)}
        others = {(await producer.send("T", b"x", unique_key=f"K{n}")).queue_id for n in range(20)}
        assert len(queues) == 1
        assert len(others) == 4


async def test_a_send_to_an_unknown_broker_group_fails_at_once():
    async with asyncio.timeout(10), fake_cluster() as cluster, Producer(cluster.namesrv, timeout=3600) as producer:
        with pytest.raises(SendError, match="no broker group 'broker-z' has it") as failure:
            await producer.send("T", b"x", queue=MessageQueue("T", "broker-z", 0))
    assert (failure.value.outcome, failure.value.attempts, failure.value.retryable) == ("not_sent", 0, True)


async def test_a_send_error_names_the_full_disk_after_other_nodes_were_tried(cluster):
    async with Producer(cluster.namesrv, timeout=0.5) as producer:
        leader, follower, _ = cluster.group.nodes
        links = [await producer._core.pool.get(node.address, math.inf) for node in cluster.group.nodes]
        leader.on[SEND] = refusing(14, "the disk is full")
        with HandClock() as clock:
            sending = asyncio.create_task(producer.send("T", b"x"))
            await clock.run_between_attempts(sending, links)
            with pytest.raises(SendError, match="the disk is full") as failure:
                await sending
    assert failure.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert SEND in follower.codes()


async def test_an_idempotent_batch_with_keys_goes_to_the_same_queue_in_every_program():
    batch = [Message(b"one", unique_key="k1"), Message(b"two", unique_key="k2")]
    async with fake_cluster(groups=2) as cluster:
        places = set()
        for others in range(4):
            async with Producer(cluster.namesrv, idempotent=True) as producer:
                for _ in range(others):
                    await producer.send("T", b"x")
                results = await producer.send_batch("T", batch)
                places |= {(result.broker_group, result.queue_id) for result in results}
    assert len(places) == 1


@pytest.mark.parametrize("ordering_key", [None, "k"])
async def test_a_topic_that_got_fewer_queues_is_sent_to_by_its_new_route(ordering_key):
    async with fake_cluster(topics={"T": 8}) as cluster, Producer(cluster.namesrv) as producer:
        node = cluster.group.nodes[0]

        async def has_one_queue(command):
            if int(command.ext["e"]) > 0:
                return make_response(command, ResponseCode.INVALID_PARAMETER, "queueId is outside 0..0 of topic T")
            return await node.handle(command, None)

        await producer.send("T", b"x")
        node.on[SEND] = has_one_queue
        sending = asyncio.create_task(producer.send("T", b"x", ordering_key=ordering_key))
        await until(lambda: cluster.name_server.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 3)
        cluster.name_server.topics["T"] = 1
        assert (await sending).queue_id == 0
        with pytest.raises(SendError, match="queueId is outside"):
            await producer.send("T", b"x", queue=MessageQueue("T", "broker-a", 5))


@pytest.mark.parametrize("timeout", [0, -1])
async def test_a_send_whose_deadline_has_passed_is_not_sent(cluster, producer, timeout):
    await producer.send("T", b"first")
    for call in (producer.send("T", b"late", timeout=timeout), producer.send_batch("T", [b"late"], timeout=timeout)):
        with pytest.raises(SendError, match="deadline had passed") as failure:
            await call
        assert (failure.value.outcome, failure.value.attempts) == ("not_sent", 0)
    with pytest.raises(SendError):
        await producer.send_oneway("T", b"late", timeout=timeout)
    await producer.send("T", b"last")
    assert sorted(cluster.group.bodies("T")) == [b"first", b"last"]
