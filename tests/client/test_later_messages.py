"""Messages that are to be seen later: what producers ask for, what they take back, and how long consumers send back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from client_fakes import CLOSE, fake_cluster, until

import dledger_client.consumer
from dledger_client import (
    InvalidArgumentError,
    Message,
    Producer,
    PushConsumer,
    RefusedError,
    SendError,
)
from dledger_client.retries import level_of
from dledger_client.routes import queue_of_key
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.properties import TIMER_DELAY_MS, TIMER_DELIVER_MS, parse_properties
from dledger_remoting.recalls import RecallHandle

AT = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
AT_MS = 1_893_553_445_678
HANDLE = RecallHandle("T", "broker-a", AT_MS, "K1").encode()


def asked(record):
    properties = parse_properties(record.properties)
    return {name: properties[name] for name in (TIMER_DELAY_MS, TIMER_DELIVER_MS) if name in properties}


# ---------------------------------------------------------------- sends


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ({"delay_s": 2}, {TIMER_DELAY_MS: "2000"}),
        ({"delay_s": 0.0015}, {TIMER_DELAY_MS: "2"}),
        ({"delay_s": 0}, {}),
        ({"deliver_at": AT}, {TIMER_DELIVER_MS: str(AT_MS)}),
        ({"deliver_at": AT_MS}, {TIMER_DELIVER_MS: str(AT_MS)}),
        ({}, {}),
    ],
)
async def test_a_message_asks_for_its_delay(delay, expected):
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", b"1", **delay)
        await producer.send("T", Message(b"2", **delay))
        await producer.send_batch("T", [Message(b"3", **delay)])
        assert [asked(record) for record in cluster.group.queues["T", 0]] == [expected] * 3


@pytest.mark.parametrize(
    "delay",
    [{"delay_s": 1, "deliver_at": AT}, {"delay_s": -1}, {"deliver_at": AT.replace(tzinfo=None)}],
)
async def test_a_delay_that_is_none_is_refused_before_anything_is_sent(delay):
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(InvalidArgumentError, match=r"delay_s|deliver_at"):
            await producer.send("T", b"x", **delay)
        with pytest.raises(InvalidArgumentError, match=r"delay_s|deliver_at"):
            await producer.send_batch("T", [b"x", Message(b"x", **delay)])
        assert cluster.group.bodies("T") == []


async def test_what_a_message_says_is_not_given_besides():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(InvalidArgumentError, match="beside a Message"):
            await producer.send("T", Message(b"x"), tags="a")
        await producer.send("T", Message(b"x", "key", "tag", {"a": "b"}, "K1"), timeout=5)
        (record,) = cluster.group.queues["T", 0]
        assert parse_properties(record.properties) == {"UNIQ_KEY": "K1", "KEYS": "key", "TAGS": "tag", "a": "b"}


async def test_delayed_messages_of_a_batch_go_alone_and_all_keep_their_order():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        messages = [b"0", b"1", Message(b"2", delay_s=1), Message(b"3", delay_s=1), b"4"]
        results = await producer.send_batch("T", messages)
        assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
        assert cluster.group.bodies("T") == [b"0", b"1", b"2", b"3", b"4"]
        codes = [code for code in cluster.group.nodes[0].codes() if code in (310, 320)]
        assert codes == [320, 310, 310, 320]


async def test_each_message_of_a_batch_goes_to_the_queue_of_its_own_key_in_order():
    async with fake_cluster(topics={"T": 8}) as cluster, Producer(cluster.namesrv) as producer:
        messages = [Message(b"%02d" % number, ordering_key=f"key-{number % 5}") for number in range(30)]
        results = await producer.send_batch("T", [*messages, b"no key"])
        route = producer._core.routes.cached("T")
        for number, result in enumerate(results[:30]):
            queue = queue_of_key(route, f"key-{number % 5}")
            assert (result.queue_id, cluster.group.queues["T", queue.queue_id][result.queue_offset].body) == (
                queue.queue_id,
                b"%02d" % number,
            )
        for key in range(5):
            mine = [result.queue_offset for result in results[key:30:5]]
            assert mine == sorted(mine)


async def test_a_batch_of_which_a_part_fails_says_what_is_stored():
    async with fake_cluster(topics={"T": 8}) as cluster, Producer(cluster.namesrv) as producer:
        leader = cluster.group.nodes[0]
        await producer.queues("T")
        route = producer._core.routes.cached("T")
        bad = queue_of_key(route, "a").queue_id
        good = next(key for key in map(str, range(100)) if queue_of_key(route, key).queue_id != bad)

        async def refuse(command):
            if command.ext["e"] == str(bad):
                return make_response(command, ResponseCode.MESSAGE_ILLEGAL, "no")
            return await leader.handle(command, None)

        leader.on[RequestCode.SEND_BATCH_MESSAGE] = refuse
        messages = [Message(b"1", ordering_key="a"), Message(b"2", ordering_key=good), Message(b"3", ordering_key="a")]
        with pytest.raises(SendError) as failed:
            await producer.send_batch("T", messages)
        assert failed.value.outcome == "not_sent"
        assert [result.queue_id for result in failed.value.stored] == [queue_of_key(route, good).queue_id]
        assert cluster.group.bodies("T") == [b"2"]


async def test_a_key_whose_broker_group_is_away_is_not_stored_elsewhere():
    async with fake_cluster(groups=2, nodes=1) as cluster, Producer(cluster.namesrv) as producer:
        await producer.queues("T")
        route = producer._core.routes.cached("T")
        away = next(key for key in map(str, range(100)) if queue_of_key(route, key).broker_group == "broker-b")
        there = next(key for key in map(str, range(100)) if queue_of_key(route, key).broker_group == "broker-a")
        first = await producer.send("T", Message(b"0", ordering_key=away))
        (node,) = cluster.groups[1].nodes
        await node.kill()
        cluster.groups[1].leader = None
        cluster.groups[1].name_server.changed()
        await until(lambda: producer._core.routes.cached("T").absent_writable)
        for number in range(3):
            with pytest.raises(SendError) as failed:
                await producer.send("T", Message(b"lost", ordering_key=away), timeout=0.1)
            assert failed.value.outcome == "not_sent"
            await producer.send("T", Message(b"%d" % number, ordering_key=there))
        await node.start()
        node.alive = True
        await cluster.groups[1].elect(node)
        again = await producer.send("T", Message(b"1", ordering_key=away), timeout=30)
        assert (again.broker_group, again.queue_id) == (first.broker_group, first.queue_id)
        assert cluster.groups[1].bodies("T") == [b"0", b"1"]
        assert cluster.groups[0].bodies("T") == [b"0", b"1", b"2"]


# ---------------------------------------------------------------- recalls


async def test_the_answer_to_a_send_has_the_handle_that_a_recall_takes():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv, group="PG") as producer:
        leader = cluster.group.nodes[0]

        def stored(command):
            ext = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0", "recallHandle": HANDLE}
            return make_response(command, 0, ext=ext)

        leader.on[RequestCode.SEND_MESSAGE_V2] = stored
        leader.on[RequestCode.RECALL_MESSAGE] = lambda command: make_response(command, 0, ext={"msgId": "K1"})
        sent = await producer.send("T", b"x", delay_s=5)
        assert sent.recall_handle == HANDLE
        assert await producer.recall("T", sent.recall_handle) == "K1"
        (command,) = [command for command in leader.received if command.code == RequestCode.RECALL_MESSAGE]
        fields = {name: command.ext[name] for name in ("producerGroup", "topic", "recallHandle")}
        assert fields == {"producerGroup": "PG", "topic": "T", "recallHandle": HANDLE}


async def test_a_recall_is_asked_for_again_until_its_outcome_is_known():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        answers = iter([CLOSE, ResponseCode.SYSTEM_BUSY, 0])

        def answer(command):
            found = next(answers)
            return found if found is CLOSE else make_response(command, found, "busy" if found else None)

        for node in cluster.group.nodes:
            node.on[RequestCode.RECALL_MESSAGE] = answer
        assert await producer.recall("T", HANDLE) == "K1"
        assert list(answers) == []


async def test_that_it_is_too_late_is_an_error_with_the_brokers_text():
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        for node in cluster.group.nodes:
            node.on[RequestCode.RECALL_MESSAGE] = lambda command: make_response(command, 604, "too late")
        with pytest.raises(RefusedError, match="too late") as refused:
            await producer.recall("T", HANDLE)
        assert (refused.value.code, refused.value.outcome) == (604, "not_sent")
        with pytest.raises(InvalidArgumentError, match="recall handle is invalid"):
            await producer.recall("T", "no handle")


# ---------------------------------------------------------------- consumers


@pytest.mark.parametrize(
    ("delay_s", "level"), [(0, 1), (0.5, 1), (1, 1), (1.001, 2), (60, 5), (3600, 17), (7200, 18), (86_400, 18)]
)
def test_rocketmqs_level_of_a_delay_is_the_next_longer_one(delay_s, level):
    assert level_of(delay_s) == level


@pytest.mark.parametrize(
    ("delay_s", "fields"),
    [(None, ("0", None)), (2.5, ("2", "2500")), (0, ("1", "0"))],
)
async def test_a_message_is_given_back_for_as_long_as_its_consumer_asks(delay_s, fields):
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.group.store("T", 0, b"x", b"")
        leader = cluster.group.nodes[0]
        leader.on[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: make_response(command, 0)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            consumer.nack(await anext(consumer), delay_s=delay_s)
            await until(lambda: RequestCode.CONSUMER_SEND_MSG_BACK in leader.codes())
        (command,) = [command for command in leader.received if command.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert (command.ext["delayLevel"], command.ext.get("delayTimeMillis")) == fields


async def test_a_consumer_that_keeps_order_waits_in_its_place(monkeypatch):
    """The pause of a failure is long here: what is asked for is waited for instead."""
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 1000.0)
    async with fake_cluster(topics={"T": 1}) as cluster:
        for number in range(2):
            cluster.group.store("T", 0, b"%d" % number, b"")
        seen = []
        async with PushConsumer(cluster.namesrv, "CG", "T", orderly=True) as consumer:
            async for message in consumer:
                seen.append((message.body, message.reconsume_times))
                if len(seen) == 1:
                    consumer.nack(message, delay_s=0.01)
                if len(seen) == 3:
                    break
        assert seen == [(b"0", 0), (b"0", 1), (b"1", 0)]


async def test_a_negative_delay_is_refused():
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.group.store("T", 0, b"x", b"")
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            message = await anext(consumer)
            with pytest.raises(InvalidArgumentError, match="delay_s=-1"):
                consumer.nack(message, delay_s=-1)
            message.ack()
