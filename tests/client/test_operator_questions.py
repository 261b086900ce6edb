"""Operators ask a consumer, through a broker, for its state, and make it consume a message now."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager

import pytest
from client_fakes import until
from consuming import fill, take

from dledger_client import Interceptor, PushConsumer, interception
from dledger_client.codecs import JsonCodec
from dledger_client.consuming.questions import MAX_AT_ONCE
from dledger_client.messages import Decoding
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.fastjson import to_standard_json
from dledger_remoting.record import encode_record

QUEUE = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
ASKED = {"consumerGroup": "CG", "clientId": "the one member"}


async def ask(cluster, code, ext, body=b"", *, opaque=1_000_000_002):
    """Let a broker ask the only member of the group, and return the answer."""
    (writer,) = cluster.group.members["CG"].values()
    writer.write(encode_command(RemotingCommand(code, opaque=opaque, ext=ext, body=body)))
    answers = cluster.group.nodes[0].answers
    await until(lambda: any(answer.opaque == opaque for answer in answers))
    (answer,) = [answer for answer in answers if answer.opaque == opaque]
    return answer


async def consume(cluster, number=0, *, opaque=1_000_000_002):
    ext = {**ASKED, "msgId": "its id", "brokerName": "broker-a"}
    record = encode_record(cluster.group.queues["T", 0][number])
    answer = await ask(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, record, opaque=opaque)
    return answer, json.loads(answer.body) if answer.body else None


async def test_a_consumer_reports_its_queues_subscriptions_and_task_stacks(cluster):
    fill(cluster, 5)
    async with PushConsumer(cluster.namesrv, "CG", {"T": "a || b"}, filter="*", auto_ack=False) as consumer:
        await until(lambda: "CG" in cluster.group.members and consumer.assignment)
        ext = {**ASKED, "jstackEnable": "true"}
        answer = await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        assert answer.code == ResponseCode.SUCCESS
        told = json.loads(to_standard_json(answer.body))
        assert {one["topic"]: one["subString"] for one in told["subscriptionSet"]}["T"] == "a || b"
        assert told["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert told["properties"]["PROP_NAMESERVER_ADDR"] == cluster.namesrv
        assert "fetch " in told["jstack"]
        row = told["mqTable"][QUEUE]
        assert row["lastPullTimestamp"] > 1_700_000_000_000

        unasked = await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED, opaque=1_000_000_003)
        assert b"jstack" not in unasked.body


async def test_a_consumer_reports_its_unfinished_messages(cluster):
    fill(cluster, 5)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        first, *_ = await take(consumer, 2)
        first.ack()
        answer = await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
        row = json.loads(to_standard_json(answer.body))["mqTable"][QUEUE]
        told = [row[name] for name in ("commitOffset", "cachedMsgCount", "cachedMsgMaxOffset")]
        assert told == [1, 4, 4]


@pytest.mark.parametrize("wish", ["done", "again", "raises", "nothing"])
async def test_consuming_for_an_operator_does_not_affect_the_offset_of_the_queue(cluster, wish):
    seen = []

    async def handler(message):
        seen.append((message.body, message.queue.broker_group))
        if len(seen) == 1:
            message.ack()  # the queue's own message
        elif wish == "done":
            message.ack()
        elif wish == "again":
            message.retry()
        elif wish == "raises":
            raise ValueError("not today")

    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, auto_ack=False) as consumer:
        await until(lambda: len(seen) == 1)
        answer, told = await consume(cluster)
        assert answer.code == ResponseCode.SUCCESS
        expected = {
            "done": "CR_SUCCESS",
            "again": "CR_LATER",
            "raises": "CR_THROW_EXCEPTION",
            "nothing": "CR_RETURN_NULL",
        }
        assert told["consumeResult"] == expected[wish]
        assert told.get("remark") == ("ValueError: not today" if wish == "raises" else None)
        assert seen == [(b"0000", "broker-a")] * 2
        await consumer.commit()
        assert cluster.group.offsets["CG", "T", 0] == 1
    assert not any(one.code == RequestCode.CONSUMER_SEND_MSG_BACK for one in cluster.group.nodes[0].received)


async def test_a_consumer_explains_why_it_cannot_serve_an_operator_request(cluster):
    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        await take(consumer, 1)
        answer, _ = await consume(cluster)
        assert (answer.code, "no handler" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        other = {**ASKED, "consumerGroup": "another"}
        answer = await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, other, opaque=1_000_000_003)
        assert (answer.code, "one of CG" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        answer = await ask(
            cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, {**ASKED, "msgId": "x"}, b"no record", opaque=1_000_000_004
        )
        assert (answer.code, "cannot be read" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_operator_requests_above_the_limit_are_refused_and_a_close_answers_none(cluster):
    working, finish = [], asyncio.Event()

    async def handler(message):
        working.append(message)
        await finish.wait()

    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, close_timeout=0.1):
        await until(lambda: len(working) == 1)
        asked = [asyncio.create_task(consume(cluster, opaque=1_000_000_100 + number)) for number in range(MAX_AT_ONCE)]
        await until(lambda: len(working) == 1 + MAX_AT_ONCE)
        answer, _ = await consume(cluster)
        assert (answer.code, "ask later" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
    for task in asked:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_message_that_an_operator_has_consumed_is_decoded_as_any_other(cluster):
    cluster.group.store("T", 0, b"17")
    cluster.group.store("T", 0, b"seventeen")
    seen = []

    async def handler(message):
        seen.append(message.decoding)

    async with PushConsumer(cluster.namesrv, "CG", "T", handler, codec=JsonCodec(int), start_from="last") as consumer:
        await until(lambda: "CG" in cluster.group.members and consumer.assignment)
        _, done = await consume(cluster, 0)
        _, failed = await consume(cluster, 1, opaque=1_000_000_003)
    assert (done["consumeResult"], seen) == ("CR_SUCCESS", [Decoding(17)])
    assert failed["consumeResult"] == "CR_THROW_EXCEPTION"
    assert failed["remark"].startswith("DecodeError: message ")


async def test_a_message_that_an_operator_has_consumed_is_handled_within_the_interceptor(cluster):
    handled = []

    class Watch(Interceptor):
        @contextmanager
        def handling(self, call):
            yield
            handled.append(call.message.body)

    async def handler(_message):
        """Handle a message."""

    interception.install(Watch())
    try:
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", "T", handler) as consumer:
            await until(lambda: "CG" in cluster.group.members and consumer.assignment and handled)
            _, told = await consume(cluster)
    finally:
        interception.uninstall()
    assert told["consumeResult"] == "CR_SUCCESS"
    assert handled == [b"0000"] * 2
