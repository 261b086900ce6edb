"""Message traces: the client's records about its messages. No operation waits for them or fails because of them."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, refusing, until

from dledger_client import InvalidArgumentError, Message, Producer, PushConsumer, SendError
from dledger_client.sending.tracing import MAX_BATCH_TRACES, Tracer, tracer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.compression import decompress
from dledger_remoting.properties import parse_properties
from dledger_remoting.topics import TRACE_TOPIC
from dledger_remoting.traces import DeliveryTrace, HandlingTrace, SendTrace, decode_traces, traces_about

CLUSTER = {"topics": {"T": 1, TRACE_TOPIC: 1, "my-traces": 1}}


def bodies(cluster, topic=TRACE_TOPIC):
    return [decompress(record.body, record.sys_flag) for record in cluster.group.queues.get((topic, 0), [])]


def traces(cluster, topic=TRACE_TOPIC):
    return [trace for body in bodies(cluster, topic) for trace in decode_traces(body).traces]


async def test_a_send_is_traced_with_all_its_fields_if_its_client_was_asked_to(cluster, producer):
    await producer.send("T", b"not traced")
    async with Producer(cluster.namesrv, group="PG", trace=True) as traced:
        sent = await traced.send("T", b"hello", key="k1 k2", tags="a")
    (trace,) = traces(cluster)
    told = (trace.timestamp_ms, "DefaultRegion", "PG", "T", sent.message_id, "a", "k1 k2", trace.broker, 5)
    assert trace == SendTrace(*told, trace.cost_ms, 0, sent.offset_message_id, True)
    (record,) = cluster.group.queues[TRACE_TOPIC, 0]
    assert parse_properties(record.properties)["KEYS"] == f"{sent.message_id} k1 k2"
    assert traced.traces_dropped == 0


async def test_each_message_of_a_batch_is_found_by_its_own_id(cluster):
    async with Producer(cluster.namesrv, trace="my-traces") as producer:
        sent = await producer.send_batch("T", [Message(b"1", tags="a"), b"22", Message(b"333", delay_s=60)])
    for number, one in enumerate(sent):
        (trace,) = traces_about(one.message_id, bodies(cluster, "my-traces"))
        assert isinstance(trace, SendTrace)
        assert (trace.offset_message_id, trace.body_bytes) == (one.offset_message_id, number + 1)
        assert (trace.tags, trace.message_type) == [("a", 0), ("", 0), ("", 3)][number]


async def test_a_send_that_fails_is_traced_and_fails_as_it_would_have(cluster):
    async with Producer(cluster.namesrv, trace=True) as producer:
        leader = cluster.group.leader
        refused = refusing(ResponseCode.MESSAGE_ILLEGAL, "the body is too long")
        leader.answer_in_turn(RequestCode.SEND_MESSAGE_V2, refused, leader._send)
        with pytest.raises(SendError, match="too long"):
            await producer.send("T", b"hello", unique_key="K")
        await until(lambda: traces(cluster))
    (trace,) = traces(cluster)
    assert (trace.message_id, trace.succeeded, trace.offset_message_id, trace.broker) == ("K", False, "", "")


async def test_a_delivery_and_how_it_ended_are_traced(cluster):
    async with Producer(cluster.namesrv) as producer:
        sent = [await producer.send("T", body) for body in (b"good", b"bad")]
    async with PushConsumer(cluster.namesrv, "CG", "T", trace=True) as consumer:
        async for message in consumer:
            if message.body == b"bad":
                message.retry()
                message.retry()
                break
    for one, succeeded in zip(sent, (True, False), strict=True):
        before, after = traces_about(one.message_id, bodies(cluster))
        assert isinstance(before, DeliveryTrace)
        assert isinstance(after, HandlingTrace)
        assert (before.group, before.reconsume_times, after.group) == ("CG", 0, "CG")
        assert (after.request_id, after.succeeded) == (before.request_id, succeeded)
        assert after.context_code == (0 if succeeded else 4)


async def test_traces_beyond_the_limit_are_dropped_and_counted(cluster):
    async with Producer(cluster.namesrv, trace=True, max_traces=3) as producer:
        await producer.send_batch("T", [b"%d" % number for number in range(10)])
        assert producer.traces_dropped == 7
    assert len(traces(cluster)) == 3


async def test_a_send_neither_waits_nor_fails_while_traces_cannot_be_sent(caplog):
    async with fake_cluster(topics={"T": 1}) as cluster:
        async with Producer(cluster.namesrv, trace="Absent", timeout=5) as producer:
            for number in range(3):
                await producer.send("T", b"%d" % number)
                await until(lambda number=number: producer.traces_dropped == number + 1)
        assert len(cluster.group.queues["T", 0]) == 3
        assert caplog.text.count("traces could not be sent to topic Absent") == 1


async def test_a_close_waits_briefly_for_traces_and_drops_the_others(monkeypatch):
    monkeypatch.setattr("dledger_client.sending.tracing.CLOSE_SECONDS", 0.01)
    unsent = Tracer(TRACE_TOPIC, 5)
    unsent.add(DeliveryTrace(1, "R", "CG", "r", "ID", 0, ""))
    await unsent.close()
    assert unsent.dropped == 1


def test_a_batch_has_room_for_its_keys_and_at_least_one_trace():
    waiting = Tracer(TRACE_TOPIC, 1000)
    for number in range(MAX_BATCH_TRACES + 20):
        waiting.add(DeliveryTrace(1, "R", "CG", "r", f"ID{number}", 0, ""))
    assert [len(waiting._next_batch()) for _ in range(2)] == [MAX_BATCH_TRACES, 20]
    for number in range(4):
        waiting.add(DeliveryTrace(1, "R", "CG", "r", f"ID{number}", 0, "k" * 5_000))
    assert [len(waiting._next_batch()) for _ in range(4)] == [1, 1, 1, 1]


def test_an_invalid_trace_topic_or_trace_limit_is_refused():
    assert tracer(False, 1) is None
    with pytest.raises(InvalidArgumentError, match="no such"):
        tracer("no such", 1)
    with pytest.raises(InvalidArgumentError, match="max_traces"):
        tracer(True, 0)


async def test_the_last_traces_are_written_before_a_client_is_closed(cluster):
    async with Producer(cluster.namesrv, trace=True) as producer:
        await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(250)))
    assert len(traces(cluster)) == 250
    assert len(bodies(cluster)) < 50


async def test_a_key_that_cannot_be_written_loses_only_its_own_trace(cluster, caplog):
    async with Producer(cluster.namesrv, trace=True) as producer:
        odd = producer.send("T", b"odd", unique_key="order 17")
        await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(10)), odd)
    assert len(traces(cluster)) == 10
    assert producer.traces_dropped == 1
    assert any("the trace of message 'order 17' cannot be sent" in one.getMessage() for one in caplog.records)
