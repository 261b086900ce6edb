"""Metrics of the conventions: what each counts, and with which attributes."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint

from dledger_client import (
    InvalidArgumentError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    SimpleConsumer,
)
from dledger_otel import processing
from dledger_otel.conventions import DURATION_BOUNDARIES_S
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.client.client_fakes import FakeCluster, answer_to_pop, answering, refusing
from tests.integrations.otel.telemetry import Telemetry

SENT, CONSUMED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
DURATION, PROCESS = "messaging.client.operation.duration", "messaging.process.duration"


def common(fakes: FakeCluster, **others: str) -> dict[str, object]:
    """Return the attributes that all metrics have, and others, whose names begin with `messaging.`."""
    host, port = fakes.namesrv.split(":")
    shared = {"messaging.system": "rocketmq", "messaging.destination.name": "T"}
    named = {f"messaging.{name.replace('__', '.')}": value for name, value in others.items()}
    return shared | {"server.address": host, "server.port": int(port)} | named


def totals(telemetry: Telemetry, name: str, attribute: str = "error.type") -> dict[object, float]:
    """Return the values of a metric, by one of its attributes. A duration counts its operations."""
    found: dict[object, float] = {}
    for point in telemetry.points(name):
        count = point.count if isinstance(point, HistogramDataPoint) else point.value
        key = point.attributes.get(attribute)
        found[key] = found.get(key, 0) + count
    return found


async def test_each_sent_message_counts_and_each_send_has_a_duration(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x")
        await producer.send_batch("T", [b"x", b"y"])
        await producer.send_oneway("T", b"x")
    assert totals(telemetry, SENT, "messaging.operation.name") == {"send": 3, "send_oneway": 1}
    assert totals(telemetry, DURATION, "messaging.operation.name") == {"send": 2, "send_oneway": 1}
    (sent,) = (point for point in telemetry.points(SENT) if point.attributes["messaging.operation.name"] == "send")
    assert dict(sent.attributes) == common(fakes, operation__name="send")
    (timed,) = (p for p in telemetry.points(DURATION) if p.attributes["messaging.operation.name"] == "send")
    assert dict(timed.attributes) == common(fakes, operation__name="send", operation__type="send")
    assert timed.explicit_bounds == DURATION_BOUNDARIES_S


async def test_the_duration_of_a_span_is_that_of_the_metric(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x")
    span, (point,) = telemetry.one("send T"), telemetry.points(DURATION)
    assert point.sum == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1e-9)
    assert point.sum > 0


async def test_failed_sends_count_with_their_error_and_stored_parts_of_a_batch_without(
    fakes: FakeCluster, telemetry: Telemetry
):
    leader = fakes.group.leader
    refused = refusing(ResponseCode.NO_PERMISSION, "no")
    leader.answer_in_turn(RequestCode.SEND_BATCH_MESSAGE, leader._send, refused)
    fakes.answer(RequestCode.SEND_MESSAGE_V2, refused)
    async with Producer(fakes.namesrv, max_batch_bytes=250) as producer:
        with pytest.raises(SendError):
            await producer.send("T", b"x")
        with pytest.raises(SendError) as raised:
            await producer.send_batch("T", [b"1", b"2", b"3"])
        assert len(raised.value.stored) == 1
        with pytest.raises(InvalidArgumentError):
            await producer.send_batch("T", [Message(b"x", delay_s=-1)])
    assert totals(telemetry, SENT) == {None: 1, "NO_PERMISSION": 3}
    assert totals(telemetry, DURATION) == {"NO_PERMISSION": 2, "InvalidArgumentError": 1}


async def test_a_delivery_counts_once_and_work_has_its_own_duration(fakes: FakeCluster, telemetry: Telemetry):
    fakes.answer(RequestCode.CONSUMER_SEND_MSG_BACK, answering())
    for body in (b"good", b"bad"):
        fakes.group.store("T", 0, body)
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handler(message):
        seen.append(message.body)
        if message.body == b"bad":
            done.set()
            raise LookupError

    async with PushConsumer(fakes.namesrv, "CG", "T", handler, concurrency=1):
        await done.wait()
        await telemetry.wait_for("retry T")
    assert seen == [b"good", b"bad"]
    assert totals(telemetry, CONSUMED) == {None: 2}
    assert totals(telemetry, PROCESS) == {None: 1, "LookupError": 1}
    assert totals(telemetry, DURATION, "messaging.operation.name") == {"retry": 1}
    (good,) = (point for point in telemetry.points(PROCESS) if "error.type" not in point.attributes)
    assert dict(good.attributes) == common(fakes, operation__name="process", consumer__group__name="CG")


async def test_received_messages_count_when_they_are_received_and_not_when_they_are_processed(
    fakes: FakeCluster, telemetry: Telemetry
):
    record = fakes.group.store("T", 0, b"x")
    fakes.answer(RequestCode.POP_MESSAGE, lambda command: answer_to_pop(command, [record]))
    fakes.answer(RequestCode.ACK_MESSAGE, answering())
    async with SimpleConsumer(fakes.namesrv, "CG", "T") as simple, PullConsumer(fakes.namesrv, "CG") as puller:
        (message,) = await simple.receive(1)
        with processing(message, "CG"):
            await simple.ack(message)
        await puller.assign(await puller.queues("T"))
        assert len(await puller.poll()) == 1
    assert totals(telemetry, CONSUMED, "messaging.operation.name") == {"receive": 1, "poll": 1}
    assert totals(telemetry, DURATION, "messaging.operation.type") == {"receive": 2, "settle": 1}
    assert totals(telemetry, PROCESS) == {None: 1}
