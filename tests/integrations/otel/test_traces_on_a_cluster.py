"""Traces over a real cluster: each way of sending and consuming goes on with the trace of its messages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_client import (
    Admin,
    Decision,
    Message,
    OpenTransaction,
    OrderlyConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    SyncConsumer,
    SyncProducer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
    TransactionProducer,
)
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_otel import processing
from tests.integrations.otel.telemetry import CLIENT, CONSUMER, PRODUCER, Telemetry, is_child, linked

GUIDE = Path(__file__).parents[3] / "docs/guides/opentelemetry.md"
PRINTING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
trace.set_tracer_provider(provider)
"""
"""Set-up of a program that prints the names of its spans."""

cluster = local_cluster_fixture(nodes=1, config="transaction_timeout_ms = 100\ntransaction_check_interval_ms = 100\n")


@pytest.fixture
async def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.originalname.removeprefix("test_")[:60]
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(name, queues=1)
    return name


async def nothing(_message: ReceivedMessage) -> None:
    """Handle a message."""


async def test_a_handler_works_in_the_trace_of_the_send(cluster: LocalCluster, topic: str, telemetry: Telemetry):
    async def handler(_message: ReceivedMessage) -> None:
        with telemetry.tracer.start_as_current_span("work"):
            pass

    async with Producer(cluster.namesrv, group="PG") as producer, PushConsumer(cluster.namesrv, topic, topic, handler):
        with telemetry.tracer.start_as_current_span("order"):
            sent = await producer.send(topic, b"one", key="k1 k2", tags="a")
        (process,) = await telemetry.wait_for(f"process {topic}")
    order, send, work = telemetry.one("order"), telemetry.one(f"send {topic}"), telemetry.one("work")
    assert (send.kind, process.kind) == (PRODUCER, CONSUMER)
    assert is_child(send, order)
    assert is_child(process, send)
    assert is_child(work, process)
    assert linked(process) == {send.context.span_id}
    host, port = cluster.namesrv.split(":")
    shared = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"broker-a/{sent.queue_id}",
        "messaging.message.id": sent.message_id,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "a",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "server.address": host,
        "server.port": int(port),
    }
    of_send, of_process = dict(send.attributes), dict(process.attributes)
    assert of_send.pop("network.peer.port") != int(port)
    assert of_send.pop("messaging.client.id") != of_process.pop("messaging.client.id")
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert of_send == shared | operation | {"network.peer.address": "127.0.0.1"}
    operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    group = {"messaging.consumer.group.name": topic, "messaging.rocketmq.consumption_model": "clustering"}
    assert of_process == shared | operation | group


async def test_a_failed_message_links_to_its_attempts_and_its_dead_letter_to_its_send(
    cluster: LocalCluster, topic: str, telemetry: Telemetry
):
    async def fail(_message: ReceivedMessage) -> None:
        raise LookupError("no such order")

    async with Producer(cluster.namesrv) as producer:
        await producer.send(topic, b"one")
        async with OrderlyConsumer(cluster.namesrv, topic, topic, fail, max_reconsume_times=1):
            await telemetry.wait_for(f"dead_letter {topic}")
        async with PushConsumer(cluster.namesrv, f"{topic}-dead", f"%DLQ%{topic}", nothing):
            (buried,) = await telemetry.wait_for(f"process %DLQ%{topic}")
    send, (first, second) = telemetry.one(f"send {topic}"), telemetry.named(f"process {topic}")
    assert [dict(one.attributes)["error.type"] for one in (first, second)] == ["LookupError"] * 2
    assert first.status.description == "LookupError: no such order"
    assert (linked(first), linked(second)) == (
        {send.context.span_id},
        {send.context.span_id, first.context.span_id},
    )
    given_up = telemetry.one(f"dead_letter {topic}")
    assert (given_up.kind, given_up.attributes["messaging.operation.type"]) == (CLIENT, "settle")
    assert is_child(given_up, second)
    assert linked(given_up) == linked(buried) == {send.context.span_id}
    assert is_child(buried, send)


async def test_a_message_given_back_to_the_broker_comes_again_in_its_trace(
    cluster: LocalCluster, topic: str, telemetry: Telemetry
):
    async def handler(message: ReceivedMessage) -> None:
        if not message.reconsume_times:
            message.retry(delay_s=0.01)

    async with Producer(cluster.namesrv) as producer, PushConsumer(cluster.namesrv, topic, topic, handler):
        await producer.send(topic, b"one")
        first, second = await telemetry.wait_for(f"process {topic}", 2)
    send, retry = telemetry.one(f"send {topic}"), telemetry.one(f"retry {topic}")
    assert "error.type" not in first.attributes
    assert is_child(retry, first)
    assert linked(second) == {send.context.span_id, first.context.span_id}
    assert "messaging.destination.partition.id" not in second.attributes


async def test_a_batch_has_a_span_for_each_message(cluster: LocalCluster, topic: str, telemetry: Telemetry):
    async with (
        Producer(cluster.namesrv) as producer,
        PushConsumer(cluster.namesrv, topic, topic, nothing, concurrency=1),
    ):
        sent = await producer.send_batch(topic, [b"one", Message(b"two", tags="a")])
        processed = await telemetry.wait_for(f"process {topic}", 2)
    creates, send = telemetry.named(f"create {topic}"), telemetry.one(f"send {topic}")
    assert [span.attributes["messaging.message.id"] for span in creates] == [one.message_id for one in sent]
    assert {span.kind for span in creates} == {PRODUCER}
    assert (send.kind, send.attributes["messaging.batch.message_count"]) == (CLIENT, 2)
    assert linked(send) == {span.context.span_id for span in creates}
    assert [dict(link.attributes).get("messaging.rocketmq.message.tag") for link in send.links] == [None, "a"]
    assert all(is_child(process, create) for process, create in zip(processed, creates, strict=True))


async def test_messages_that_the_application_takes_are_received_and_then_processed(
    cluster: LocalCluster, topic: str, telemetry: Telemetry
):
    async with (
        Producer(cluster.namesrv) as producer,
        SimpleConsumer(cluster.namesrv, topic, topic) as simple,
        PullConsumer(cluster.namesrv, f"{topic}-pull") as puller,
    ):
        await producer.send(topic, b"one")
        await producer.send_oneway(topic, b"two")
        taken: list[ReceivedMessage] = []
        while len(taken) < 2:
            taken += await simple.receive()
        with processing(taken[0], topic):
            await simple.ack(taken[0])
        await simple.ack(taken[1])
        await puller.assign(await puller.queues(topic))
        polled = await puller.poll()
        while len(polled) < 2:
            polled += await puller.poll()
    sends = {span.context.span_id for name in ("send", "send_oneway") for span in telemetry.named(f"{name} {topic}")}
    assert len(sends) == 2
    for name in ("receive", "poll"):
        received = telemetry.named(f"{name} {topic}")
        assert sum(span.attributes["messaging.batch.message_count"] for span in received) == 2
        assert set().union(*map(linked, received)) == sends
        assert {(span.kind, span.attributes["messaging.operation.type"]) for span in received} == {(CLIENT, "receive")}
    process, send = telemetry.one(f"process {topic}"), telemetry.one(f"send {topic}")
    assert is_child(process, send)
    assert linked(process) == {send.context.span_id}
    inner, outer = telemetry.named(f"ack {topic}")
    assert is_child(inner, process)
    assert is_child(outer, telemetry.one(f"send_oneway {topic}"))


async def test_broadcast_consumers_say_so_and_iteration_is_received(
    cluster: LocalCluster, topic: str, telemetry: Telemetry, tmp_path: Path
):
    async with (
        Producer(cluster.namesrv) as producer,
        PushConsumer(
            cluster.namesrv, topic, topic, broadcast=True, offset_file=tmp_path / "offsets", start_from="first"
        ) as consumer,
    ):
        await producer.send(topic, b"one")
        with telemetry.tracer.start_as_current_span("request"):
            message = await anext(consumer)
            with processing(message, topic):
                pass
        message.ack()
    receive, process = telemetry.one(f"receive {topic}"), telemetry.one(f"process {topic}")
    assert receive.attributes["messaging.rocketmq.consumption_model"] == "broadcasting"
    assert receive.attributes["messaging.message.id"] == message.message_id
    assert is_child(receive, telemetry.one("request"))
    assert is_child(process, telemetry.one("request"))
    assert linked(process) == linked(receive) == {telemetry.one(f"send {topic}").context.span_id}


async def test_a_transaction_and_its_check_stay_in_one_trace(cluster: LocalCluster, topic: str, telemetry: Telemetry):
    async def check(_transaction: OpenTransaction) -> Decision:
        with telemetry.tracer.start_as_current_span("look up"):
            return "commit"

    async with (
        TransactionProducer(cluster.namesrv, group=topic, check=check) as producer,
        PushConsumer(cluster.namesrv, topic, topic, nothing),
    ):
        with telemetry.tracer.start_as_current_span("order"):
            transaction = await producer.begin(topic, b"one", unique_key="order-1")
        await producer.commit(transaction)
        await telemetry.wait_for(f"process {topic}")
        await producer.begin(topic, b"two")
        await telemetry.wait_for(f"process {topic}", 2)
    (begin, forgotten), (commit, checked) = telemetry.named(f"begin {topic}"), telemetry.named(f"commit {topic}")
    check_back = telemetry.named(f"check {topic}")[-1]
    assert begin.attributes["messaging.rocketmq.message.type"] == "transaction"
    assert (commit.kind, commit.attributes["messaging.operation.type"]) == (CLIENT, "settle")
    assert is_child(commit, begin)
    assert linked(commit) == {begin.context.span_id}
    assert (check_back.kind, check_back.attributes["messaging.operation.type"]) == (CONSUMER, "process")
    assert is_child(check_back, forgotten)
    assert linked(check_back) == linked(checked) == {forgotten.context.span_id}
    assert is_child(checked, check_back)
    assert is_child(telemetry.named("look up")[-1], check_back)
    first, second = telemetry.named(f"process {topic}")
    assert is_child(first, begin)
    assert is_child(second, forgotten)


async def test_a_request_and_its_reply_link_to_each_other(cluster: LocalCluster, topic: str, telemetry: Telemetry):
    async with Producer(cluster.namesrv) as answerer, Producer(cluster.namesrv) as asker:

        async def answer(message: ReceivedMessage) -> None:
            await answerer.reply(message, b"re: " + message.body)

        async with PushConsumer(cluster.namesrv, topic, topic, answer):
            reply = await asker.request(topic, b"question")
    assert reply.body == b"re: question"
    request, received = telemetry.one(f"request {topic}"), telemetry.one("receive_reply")
    (sent,) = (span for span in telemetry.spans if span.name.startswith("reply "))
    assert is_child(sent, telemetry.one(f"process {topic}"))
    assert linked(sent) == {request.context.span_id}
    assert linked(received) == {sent.context.span_id}
    conversations = {span.attributes["messaging.message.conversation_id"] for span in (request, sent, received)}
    assert len(conversations) == 1


def test_the_first_example_of_the_guide_runs_and_prints_its_spans(cluster: LocalCluster):
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(example.splitlines()) <= 15
    program = PRINTING + example.replace("127.0.0.1:9876", cluster.namesrv)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["send orders", "receive orders", "order 17", "process orders"]


def test_blocking_clients_record_in_the_trace_of_their_caller(cluster: LocalCluster, telemetry: Telemetry):
    topic = "blocking-clients"
    with SyncProducer(cluster.namesrv) as producer, telemetry.tracer.start_as_current_span("order"):
        producer.send(topic, b"one")
        producer.send(topic, b"two")
    with SyncConsumer(cluster.namesrv, topic, topic) as consumer:
        with telemetry.tracer.start_as_current_span("import"):
            message = next(consumer)
        with processing(message, topic):
            message.ack()
        (other,) = consumer.receive(1)
        other.ack()
        consumer.close()
        assert list(consumer) == []
    sends = telemetry.named(f"send {topic}")
    assert all(is_child(send, telemetry.one("order")) for send in sends)
    iterated, received = telemetry.named(f"receive {topic}")
    assert is_child(iterated, telemetry.one("import"))
    assert linked(iterated) | linked(received) == {send.context.span_id for send in sends}
    assert telemetry.one(f"process {topic}").attributes["messaging.message.id"] == message.message_id


def test_blocking_single_messages_and_checks_record_in_their_traces(cluster: LocalCluster, telemetry: Telemetry):
    topic = "blocking-jobs"

    def check(_transaction: OpenTransaction) -> Decision:
        with telemetry.tracer.start_as_current_span("look up"):
            return "commit"

    with SyncTransactionProducer(cluster.namesrv, group=topic, check=check) as producer:
        producer.begin(topic, b"one")
        with SyncSimpleConsumer(cluster.namesrv, topic, topic) as consumer:
            with telemetry.tracer.start_as_current_span("job"):
                (message,) = consumer.receive(1)
            assert consumer.ack(message)
    begin, check_back = telemetry.one(f"begin {topic}"), telemetry.named(f"check {topic}")[-1]
    assert is_child(check_back, begin)
    assert is_child(telemetry.named("look up")[-1], check_back)
    assert is_child(telemetry.one(f"receive {topic}"), telemetry.one("job"))
    assert is_child(telemetry.one(f"ack {topic}"), begin)
