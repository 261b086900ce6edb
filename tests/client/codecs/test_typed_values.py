"""Typed values at each kind of consumer; a body that does not decode ends no loop, and is not lost."""

from __future__ import annotations

import asyncio
import json
import logging

import msgspec
import pytest
from client_fakes import answer_to_pop, until
from consuming import committed, take

import dledger_client.consuming.settlements
from dledger_client import (
    DecodeError,
    InvalidArgumentError,
    Message,
    OrderlyConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    SyncConsumer,
    SyncProducer,
    SyncPullConsumer,
)
from dledger_client.codecs import JsonCodec
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import make_response
from dledger_remoting.properties import parse_properties


class Order(msgspec.Struct):
    number: int


CODEC = JsonCodec(Order)
BAD = b'{"number":"seventeen"}'
REASON = "Expected `int`, got `str` - at `$.number`"


def grant(command):
    """Grant a member all locks that it asks for."""
    queues = json.loads(command.body)["mqSet"]
    return make_response(command, 0, body=json.dumps({"lockOKMQSet": queues}).encode())


def stored(cluster, *bodies, topic="T"):
    return [cluster.group.store(topic, 0, body) for body in bodies]


def values(messages):
    return [message.value for message in messages]


async def test_values_and_their_content_type_travel_from_a_producer_to_a_consumer(cluster):
    async with Producer(cluster.namesrv, codec=CODEC) as producer:
        await producer.send("T", Order(1), key="k")
        await producer.send("T", Message(Order(2), properties={"contentType": "application/vnd.order+json"}))
        await producer.send_batch("T", [Order(3), Message(Order(4), tags="late")])
        await producer.send_oneway("T", Order(5))
    await until(lambda: len(cluster.group.bodies("T")) == 5)
    assert cluster.group.bodies("T") == [b'{"number":%d}' % number for number in range(1, 6)]
    async with PushConsumer(cluster.namesrv, "CG", "T", codec=CODEC) as consumer:
        messages = await take(consumer, 5)
    assert values(messages) == [Order(number) for number in range(1, 6)]
    own = "application/json"
    assert [message.content_type for message in messages] == [own, "application/vnd.order+json", own, own, own]
    assert (messages[0].key, messages[3].tags, messages[0].body) == ("k", "late", b'{"number":1}')


async def test_without_a_codec_a_value_is_the_body_and_nothing_names_a_content_type(cluster, producer):
    await producer.send("T", b"plain")
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        [message] = await take(consumer, 1)
    assert (message.value, message.content_type) == (b"plain", None)


async def taken_by_iteration(consumer, count):
    return [message.value.number for message in await take(consumer, count)]


async def taken_at_once(consumer, count):
    numbers = []
    while len(numbers) < count:
        for message in await consumer.receive(timeout=10):
            numbers.append(message.value.number)
            message.ack()
    return numbers


@pytest.mark.parametrize("taken", [taken_by_iteration, taken_at_once])
async def test_a_pushed_message_that_does_not_decode_fails_and_comes_again_until_it_is_a_dead_letter(
    cluster, caplog, taken
):
    stored(cluster, b'{"number":1}', BAD, b'{"number":2}', BAD, b'{"number":3}')
    async with PushConsumer(cluster.namesrv, "CG", "T", codec=CODEC, max_reconsume_times=1) as consumer:
        assert await taken(consumer, 3) == [1, 2, 3]
        reading = asyncio.create_task(consumer.receive(timeout=10))  # retries are decoded when they are asked for
        await until(lambda: cluster.group.bodies("%DLQ%CG") == [BAD, BAD])
        reading.cancel()
        await committed(consumer, cluster, 5)
    said = [record.getMessage() for record in caplog.records if "is not delivered" in record.getMessage()]
    assert len(said) == 4
    assert all(line.endswith(f"it does not decode: {REASON}") for line in said)


async def test_a_handler_gets_values_and_never_a_message_that_does_not_decode(cluster):
    stored(cluster, BAD, b'{"number":1}')
    numbers = []

    async def handle(message):
        numbers.append(message.value.number)

    async with PushConsumer(cluster.namesrv, "CG", "T", handle, codec=CODEC, max_reconsume_times=0) as consumer:
        await until(lambda: cluster.group.bodies("%DLQ%CG") == [BAD])
        await committed(consumer, cluster, 2)
    assert numbers == [1]


@pytest.mark.parametrize("locks", [False, True])
async def test_in_order_a_message_that_does_not_decode_counts_its_attempts_before_its_successors(
    cluster, caplog, monkeypatch, locks
):
    monkeypatch.setattr(dledger_client.consuming.settlements, "pause_seconds", lambda _failures: 0.0)
    cluster.answer(RequestCode.LOCK_BATCH_MQ, grant)
    stored(cluster, b'{"number":1}', BAD, b'{"number":2}')
    seen = []

    async def handle(message):
        seen.append((message.value.number, len(cluster.group.bodies("%DLQ%CG"))))

    options = {"codec": CODEC, "max_reconsume_times": 2}
    consumer = (
        OrderlyConsumer(cluster.namesrv, "CG", "T", handle, **options)
        if locks
        else PushConsumer(cluster.namesrv, "CG", "T", handle, orderly=True, **options)
    )
    async with consumer:
        await until(lambda: len(seen) == 2)
    assert seen == [(1, 0), (2, 1)]
    assert sum("is not delivered" in record.getMessage() for record in caplog.records) == 3


async def test_a_broadcast_message_that_does_not_decode_comes_with_its_error_and_reading_goes_on(cluster, tmp_path):
    stored(cluster, BAD, b'{"number":1}')
    options = {"codec": CODEC, "broadcast": True, "offset_file": tmp_path / "offsets.json"}
    async with PushConsumer(cluster.namesrv, "CG", "T", **options) as consumer:
        bad, good = await take(consumer, 2)
    with pytest.raises(DecodeError, match=f"does not decode: {REASON.replace('$', '.')}") as failed:
        _ = bad.value
    assert (failed.value.message.body, failed.value.reason) == (BAD, REASON)
    assert good.value == Order(1)


async def test_a_broadcast_handler_gets_the_error_and_the_next_message(cluster, tmp_path, caplog):
    stored(cluster, BAD, b'{"number":1}')
    seen = []

    async def handle(message):
        seen.append(message.body)
        seen.append(message.value)

    options = {"codec": CODEC, "broadcast": True, "offset_file": tmp_path / "offsets.json", "concurrency": 1}
    async with PushConsumer(cluster.namesrv, "CG", "T", handle, **options):
        await until(lambda: len(seen) == 3)
    assert seen == [BAD, b'{"number":1}', Order(1)]
    assert any(isinstance(record.exc_info and record.exc_info[1], DecodeError) for record in caplog.records)


async def test_a_pulled_message_that_does_not_decode_comes_with_its_error_and_the_others_with_values(cluster):
    stored(cluster, BAD, b'{"number":1}')
    async with PullConsumer(cluster.namesrv, "CG", codec=CODEC) as consumer:
        await consumer.assign(await consumer.queues("T"))
        bad, good = await consumer.poll()
    with pytest.raises(DecodeError) as failed:
        _ = bad.value
    assert failed.value.message is bad
    assert good.value == Order(1)


async def test_a_popped_message_that_does_not_decode_comes_again_and_the_broker_is_told_why(cluster, caplog):
    answers = [stored(cluster, BAD), stored(cluster, BAD, b'{"number":1}')]
    cluster.answer(RequestCode.POP_MESSAGE, lambda command: answer_to_pop(command, answers.pop(0) if answers else []))
    async with SimpleConsumer(cluster.namesrv, "CG", "T", codec=CODEC) as consumer:
        [message] = await consumer.receive()
        await until(lambda: len(cluster.requests(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 2)
    assert message.value == Order(1)
    assert not cluster.requests(RequestCode.ACK_MESSAGE)
    told = [request.ext["failureReason"] for request in cluster.requests(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)]
    assert all(reason.startswith("does not decode: ") for reason in told)
    assert sum("is not delivered" in record.getMessage() for record in caplog.records) == 2


async def test_a_body_that_cannot_be_read_comes_with_its_fault_as_its_error(cluster):
    record = cluster.group.store("T", 0, b"no zlib stream", sys_flag=1)
    assert record is not None
    async with PushConsumer(cluster.namesrv, "CG", "T", codec=CODEC, keep_unreadable=True) as consumer:
        [message] = await take(consumer, 1)
    assert message.fault is not None
    with pytest.raises(DecodeError) as failed:
        _ = message.value
    assert failed.value.reason == message.fault


class Broken:
    """Codec with every mistake that an application's codec can make."""

    content_type = "text/plain"

    def encode(self, value):
        if value == "raises":
            raise RecursionError
        return value

    def decode(self, _body):
        raise RuntimeError("two\nlines")


async def test_mistakes_of_an_applications_codec_are_errors_of_one_line(cluster, caplog):
    with caplog.at_level(logging.WARNING):
        async with Producer(cluster.namesrv, codec=Broken()) as producer:
            with pytest.raises(InvalidArgumentError, match=r"cannot encode it: RecursionError$"):
                await producer.send("T", "raises")
            with pytest.raises(InvalidArgumentError, match=r"Broken.encode\(\)='text': bytes is expected"):
                await producer.send("T", "text")
            await producer.send("T", b"x")
        async with PushConsumer(cluster.namesrv, "CG", "T", codec=Broken(), max_reconsume_times=0) as consumer:
            assert await consumer.receive(timeout=0.2) == []
            await until(lambda: cluster.group.bodies("%DLQ%CG") == [b"x"])
    assert any("it does not decode: two lines" in record.getMessage() for record in caplog.records)
    with pytest.raises(InvalidArgumentError, match=r"^codec=5: a Codec or None is expected$"):
        PullConsumer(cluster.namesrv, codec=5)


def test_blocking_clients_have_typed_values_too(threaded_cluster):
    cluster = threaded_cluster
    with SyncProducer(cluster.namesrv, codec=CODEC) as producer:
        producer.send("T", Order(1))
    stored(cluster, BAD)
    with SyncConsumer(cluster.namesrv, "CG", "T", codec=CODEC) as consumer:
        message = next(consumer)
        message.ack()
    assert message.value == Order(1)
    with SyncPullConsumer(cluster.namesrv, "CG2", codec=CODEC) as puller:
        puller.assign(puller.queues("T"))
        good, bad = puller.poll()
    assert good.value == Order(1)
    with pytest.raises(DecodeError):
        _ = bad.value
    assert "contentType" in parse_properties(cluster.group.queues["T", 0][0].properties)
