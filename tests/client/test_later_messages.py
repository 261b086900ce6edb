"""Delayed messages: the delays that producers request, recalls, and the delays of consumers that send back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from client_fakes import CLOSE, answering, fake_cluster, refusing, until

import dledger_client.consuming.settlements
from dledger_client import InvalidArgumentError, Message, Producer, PushConsumer, RefusedError, SendError
from dledger_client.cluster.routes import queue_of_key
from dledger_client.consuming.retries import level_of
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
async def test_a_message_asks_for_its_delay(cluster, producer, delay, expected):
    await producer.send("T", b"1", **delay)
    await producer.send("T", Message(b"2", **delay))
    await producer.send_batch("T", [Message(b"3", **delay)])
    assert [asked(record) for record in cluster.group.queues["T", 0]] == [expected] * 3


@pytest.mark.parametrize(
    "delay",
    [
        {"delay_s": 1, "deliver_at": AT},
        {"delay_s": -1},
        {"deliver_at": AT.replace(tzinfo=None)},
        {"deliver_at": int(AT.timestamp())},
    ],
)
async def test_an_invalid_delay_is_refused_and_nothing_is_sent(cluster, producer, delay):
    with pytest.raises(InvalidArgumentError, match=r"delay_s|deliver_at"):
        await producer.send("T", b"x", **delay)
    with pytest.raises(InvalidArgumentError, match=r"delay_s|deliver_at"):
        await producer.send_batch("T", [b"x", Message(b"x", **delay)])
    assert cluster.group.bodies("T") == []


async def test_message_options_beside_a_message_object_are_refused(cluster, producer):
    with pytest.raises(InvalidArgumentError, match="beside a Message"):
        await producer.send("T", Message(b"x"), tags="a")
    await producer.send("T", Message(b"x", "key", "tag", {"a": "b"}, "K1"), timeout=5)
    (record,) = cluster.group.queues["T", 0]
    assert parse_properties(record.properties) == {"UNIQ_KEY": "K1", "KEYS": "key", "TAGS": "tag", "a": "b"}


async def test_delayed_messages_of_a_batch_go_alone_and_all_keep_their_order(cluster, producer):
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


async def test_a_partly_failed_batch_of_several_queues_lists_the_stored_messages():
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


async def test_the_answer_to_a_send_has_the_handle_that_a_recall_takes(cluster):
    async with Producer(cluster.namesrv, group="PG") as producer:
        leader = cluster.group.nodes[0]
        stored = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0", "recallHandle": HANDLE}
        leader.on[RequestCode.SEND_MESSAGE_V2] = answering(**stored)
        leader.on[RequestCode.RECALL_MESSAGE] = answering(msgId="K1")
        sent = await producer.send("T", b"x", delay_s=5)
        assert sent.recall_handle == HANDLE
        assert await producer.recall("T", sent.recall_handle) == "K1"
        (command,) = leader.requests(RequestCode.RECALL_MESSAGE)
        fields = {name: command.ext[name] for name in ("producerGroup", "topic", "recallHandle")}
        assert fields == {"producerGroup": "PG", "topic": "T", "recallHandle": HANDLE}


async def test_a_recall_is_asked_for_again_until_its_outcome_is_known(cluster, producer):
    answers = iter([CLOSE, ResponseCode.SYSTEM_BUSY, 0])

    def answer(command):
        found = next(answers)
        return found if found is CLOSE else make_response(command, found, "busy" if found else None)

    cluster.answer(RequestCode.RECALL_MESSAGE, answer)
    assert await producer.recall("T", HANDLE) == "K1"
    assert list(answers) == []


async def test_a_late_recall_is_refused_with_the_brokers_text(cluster, producer):
    cluster.answer(RequestCode.RECALL_MESSAGE, refusing(604, "too late"))
    with pytest.raises(RefusedError, match="too late") as refused:
        await producer.recall("T", HANDLE)
    assert (refused.value.code, refused.value.outcome) == (604, "not_sent")
    with pytest.raises(InvalidArgumentError, match="recall handle is invalid"):
        await producer.recall("T", "no handle")


@pytest.mark.parametrize(
    ("delay_s", "level"), [(0, 1), (0.5, 1), (1, 1), (1.001, 2), (60, 5), (3600, 17), (7200, 18), (86_400, 18)]
)
def test_a_delay_is_rounded_up_to_the_next_rocketmq_level(delay_s, level):
    assert level_of(delay_s) == level


@pytest.mark.parametrize(("delay_s", "fields"), [(None, ("0", None)), (2.5, ("2", "2500")), (0, ("1", "0"))])
async def test_a_message_is_given_back_for_as_long_as_its_consumer_asks(cluster, delay_s, fields):
    cluster.group.store("T", 0, b"x")
    leader = cluster.group.nodes[0]
    leader.on[RequestCode.CONSUMER_SEND_MSG_BACK] = answering()
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        consumer.nack(await anext(consumer), delay_s=delay_s)
        await until(lambda: RequestCode.CONSUMER_SEND_MSG_BACK in leader.codes())
    (command,) = leader.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (command.ext["delayLevel"], command.ext.get("delayTimeMillis")) == fields


async def test_a_consumer_that_keeps_order_waits_in_its_place(cluster, monkeypatch):
    """The pause after a failure is long here, so the test passes only if the requested delay is used."""
    monkeypatch.setattr(dledger_client.consuming.settlements, "pause_seconds", lambda _failures: 1000.0)
    for number in range(2):
        cluster.group.store("T", 0, b"%d" % number)
    seen = []
    async with PushConsumer(cluster.namesrv, "CG", "T", orderly=True) as consumer:
        async for message in consumer:
            seen.append((message.body, message.reconsume_times))
            if len(seen) == 1:
                consumer.nack(message, delay_s=0.01)
            if len(seen) == 3:
                break
    assert seen == [(b"0", 0), (b"0", 1), (b"1", 0)]


async def test_a_negative_delay_is_refused(cluster):
    cluster.group.store("T", 0, b"x")
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        message = await anext(consumer)
        with pytest.raises(InvalidArgumentError, match="delay_s=-1"):
            consumer.nack(message, delay_s=-1)
        message.ack()
