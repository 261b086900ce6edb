"""Spans of calls that fail, that carry no context, or that are not recorded; and the names of the conventions."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.propagate import inject
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import StatusCode

import dledger_otel.interceptor
from dledger_client import (
    ClientClosedError,
    Decision,
    Message,
    NoRouteError,
    OpenTransaction,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RefusedError,
    SendError,
    SimpleConsumer,
    TransactionProducer,
)
from dledger_client.codecs import JsonCodec, TextCodec
from dledger_otel import conventions, processing
from dledger_otel.interceptor import Remembered
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import format_properties, parse_properties
from tests.client.client_fakes import FakeCluster, answer_to_pop, answering, refusing, until
from tests.integrations.otel.telemetry import CLIENT, PRODUCER, Telemetry, is_child, linked

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""Context that another program has put into a message."""


def stored(fakes: FakeCluster) -> list[dict[str, str]]:
    """Return the properties of all messages of `T`."""
    return [parse_properties(record.properties) for record in fakes.group.queues["T", 0]]


def carried(span) -> str:
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_the_names_are_those_of_the_conventions():
    spellings = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    spellings |= {value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")}
    ours = {
        value
        for name, value in vars(conventions).items()
        if name.isupper() and isinstance(value, str) and value.startswith("messaging.")
    }
    assert len(ours) > 20
    assert ours - spellings == set()
    assert Schemas.V1_44_0.value == conventions.SCHEMA_URL


async def test_a_refused_send_is_an_error_with_the_code_of_the_broker(fakes: FakeCluster, telemetry: Telemetry):
    fakes.answer(RequestCode.SEND_MESSAGE_V2, refusing(ResponseCode.MESSAGE_ILLEGAL, "too long"))
    async with Producer(fakes.namesrv) as producer:
        with pytest.raises(SendError):
            await producer.send("T", b"x")
    span = telemetry.one("send T")
    assert span.attributes["error.type"] == "MESSAGE_ILLEGAL"
    assert span.status.status_code is StatusCode.ERROR
    assert "too long" in span.status.description
    assert [event.name for event in span.events] == ["exception"]


async def test_a_cut_off_send_ends_its_span(fakes: FakeCluster, telemetry: Telemetry):
    fakes.group.leader.hold(RequestCode.SEND_MESSAGE_V2)
    async with Producer(fakes.namesrv) as producer:
        sending = asyncio.create_task(producer.send("T", b"x"))
        await until(lambda: fakes.group.leader.requests(RequestCode.SEND_MESSAGE_V2))
        sending.cancel()
        await asyncio.wait([sending])
    assert telemetry.one("send T").attributes["error.type"] == "CancelledError"


async def test_the_kind_of_a_message_is_told(fakes: FakeCluster, telemetry: Telemetry):
    due = datetime(2100, 1, 1, tzinfo=UTC)
    before_ms = time.time() * 1000
    async with Producer(fakes.namesrv, namespace="space") as producer:
        fakes.name_server.topics["space%T"] = 1
        await producer.send("T", b"x", deliver_at=due)
        await producer.send("T", b"x", delay_s=60)
        await producer.send("T", b"x", ordering_key="o", key=iter(["k"]))
        await producer.send_batch("T", [Message(b"x", key=["a", "b"], tags="t"), Message(b"x", key="a b", tags="t")])
    at, after, ordered, _, _, batch = (dict(span.attributes) for span in telemetry.spans if "T" in span.name)
    stamp, kind = "messaging.rocketmq.message.delivery_timestamp", "messaging.rocketmq.message.type"
    assert (at[kind], at[stamp]) == ("delay", due.timestamp() * 1000)
    assert after[stamp] >= before_ms + 60_000
    assert (ordered[kind], ordered["messaging.rocketmq.message.group"]) == ("fifo", "o")
    assert parse_properties(fakes.group.queues["space%T", 0][2].properties)["KEYS"] == "k"
    assert (batch[kind], batch["messaging.rocketmq.message.tag"]) == ("normal", "t")
    assert "messaging.rocketmq.namespace" in batch
    assert {one["messaging.rocketmq.namespace"] for one in (at, ordered, batch)} == {"space"}


async def test_a_message_with_a_context_of_its_own_keeps_it(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x", properties={"traceparent": FOREIGN})
        await producer.send_batch("T", [Message(b"y", properties={"traceparent": FOREIGN}), b"z"])
    single, batch = telemetry.named("send T")
    assert [properties["traceparent"] for properties in stored(fakes)][:2] == [FOREIGN] * 2
    assert stored(fakes)[2]["traceparent"] == carried(telemetry.one("create T"))
    assert single.kind is CLIENT
    assert linked(single) == {0xB7AD6B7169203331}
    assert linked(batch) == {0xB7AD6B7169203331, telemetry.one("create T").context.span_id}


async def test_a_property_of_the_application_is_not_replaced(fakes: FakeCluster, telemetry: Telemetry):
    token = attach(baggage.set_baggage("tenant", "seven"))
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x", properties={"baggage": "mine"})
    detach(token)
    (properties,) = stored(fakes)
    assert (properties["baggage"], properties["traceparent"]) == ("mine", carried(telemetry.one("send T")))


async def test_attributes_in_which_messages_of_a_batch_differ_are_on_their_links(
    fakes: FakeCluster, telemetry: Telemetry
):
    async with Producer(fakes.namesrv) as producer:
        await producer.send_batch("T", [Message(b"x", tags="a", key="k"), Message(b"y", tags="b", key="k")])
    send = telemetry.one("send T")
    tag, keys = "messaging.rocketmq.message.tag", "messaging.rocketmq.message.keys"
    assert (send.attributes.get(tag), send.attributes[keys]) == (None, ("k",))
    assert [dict(link.attributes) for link in send.links] == [{tag: "a"}, {tag: "b"}]


async def test_the_check_of_another_programs_transaction_goes_on_in_its_trace(fakes: FakeCluster, telemetry: Telemetry):
    fakes.answer(RequestCode.END_TRANSACTION, answering())
    record = fakes.group.store("T", 0, b"x", format_properties({"traceparent": FOREIGN}).encode())

    async def check(_transaction: OpenTransaction) -> Decision:
        return "unknown"

    with telemetry.tracer.start_as_current_span("start-up"):
        producer = TransactionProducer(fakes.namesrv, group="PG", check=check)
        await producer.start()
    transaction = await producer.begin("T", b"y")
    await fakes.group.ask_about(record)
    (check_back,) = await telemetry.wait_for("check T")
    await producer.rollback(transaction)
    await producer.close()
    assert check_back.parent.span_id == 0xB7AD6B7169203331
    postponed = telemetry.one("postpone T")
    assert is_child(postponed, check_back)
    assert linked(check_back) == linked(postponed) == {0xB7AD6B7169203331}
    assert is_child(telemetry.one("rollback T"), telemetry.one("begin T"))


async def test_no_work_is_recorded_where_instrumentation_is_suppressed(fakes: FakeCluster, telemetry: Telemetry):
    fakes.answer(RequestCode.END_TRANSACTION, answering())
    fakes.group.store("T", 0, b"x")
    handled = asyncio.Event()

    async def handler(_message: ReceivedMessage) -> None:
        handled.set()

    async def check(_transaction: OpenTransaction) -> Decision:
        return "commit"

    with suppress_instrumentation():
        async with (
            PushConsumer(fakes.namesrv, "CG", "T", handler),
            TransactionProducer(fakes.namesrv, group="PG", check=check) as producer,
        ):
            await handled.wait()
            await producer.commit(await producer.begin("T", b"y"))
    assert telemetry.spans == []


async def test_a_message_that_may_be_sent_again_by_another_program_is_not_changed(
    fakes: FakeCluster, telemetry: Telemetry
):
    async with Producer(fakes.namesrv, idempotent=True) as producer:
        for _ in range(2):
            await producer.send("T", b"x", unique_key="mine")
        await producer.send_batch("T", [Message(b"x", unique_key="mine")])
    first, second, third = stored(fakes)
    assert first == second == third
    assert "traceparent" not in first
    assert {span.kind for span in telemetry.named("send T")} == {CLIENT}
    assert telemetry.named("create T") == []


@pytest.mark.parametrize(
    "full",
    [
        {"properties": {"mine": "ä" * 16_000}},
        {"key": "k" * 32_000},
        {"key": ["k" * 16_000, "l" * 16_000]},
        {"properties": {"mine": "x" * 16_000}, "tags": "t" * 16_000},
    ],
)
async def test_a_context_for_which_a_message_has_no_room_is_left_out(
    fakes: FakeCluster, telemetry: Telemetry, full: dict
):
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", Message(b"x", **full))
        await producer.send_batch("T", [Message(b"y", **full), b"z"])
    first, second, third = stored(fakes)
    assert "traceparent" not in first | second
    assert "traceparent" in third
    assert len(telemetry.named("send T")) == 2


async def test_a_context_that_makes_a_batch_too_large_is_left_out(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv, max_message_bytes=200) as producer:
        await producer.send_batch("T", [b"x" * 100, b"y"])
    assert not any("traceparent" in properties for properties in stored(fakes))
    assert telemetry.one("send T").status.status_code is StatusCode.UNSET


async def test_a_field_that_cannot_be_a_property_is_left_out(
    fakes: FakeCluster, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
):
    def inject_much(carrier, context, setter):
        fields = {"a\x01": "1", "b": "\x02", "TAGS": "3", "": "4", "good": "5"}
        for name, value in fields.items():
            setter.set(carrier, name, value)

    monkeypatch.setattr("dledger_otel.propagation.propagate.inject", inject_much)
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x")
    (properties,) = stored(fakes)
    assert (properties.get("good"), properties.get("TAGS"), len(properties)) == ("5", None, 2)


async def test_baggage_of_the_sender_reaches_the_handler(fakes: FakeCluster, telemetry: Telemetry):
    handled = asyncio.get_running_loop().create_future()

    async def handler(_message):
        handled.set_result((baggage.get_baggage("tenant"), trace.get_current_span().get_span_context()))

    async with Producer(fakes.namesrv) as producer:
        token = attach(baggage.set_baggage("tenant", "seven"))
        await producer.send("T", b"x")
        detach(token)
        with telemetry.tracer.start_as_current_span("start-up"):
            consumer = PushConsumer(fakes.namesrv, "CG", "T", handler)
            await consumer.start()
        tenant, current = await handled
        (process,) = await telemetry.wait_for("process T")
        await consumer.close()
    assert tenant == "seven"
    assert current.span_id == process.context.span_id
    assert is_child(process, telemetry.one("send T"))


async def test_without_create_spans_a_batch_carries_the_context_of_its_send(fakes: FakeCluster):
    telemetry = Telemetry()
    with telemetry.recording(create_spans=False):
        async with Producer(fakes.namesrv) as producer:
            await producer.send_batch("T", [b"x", b"y"])
            await producer.send_batch("T", [Message(b"z", unique_key="mine")])
    send, unchanged = telemetry.named("send T")
    assert telemetry.named("create T") == []
    assert (send.kind, unchanged.kind) == (PRODUCER, CLIENT)
    assert [properties.get("traceparent") for properties in stored(fakes)] == [carried(send)] * 2 + [None]


async def test_a_failed_receive_is_recorded_and_an_empty_one_is_not(fakes: FakeCluster, telemetry: Telemetry):
    async with PullConsumer(fakes.namesrv, "CG", timeout=0.1) as puller:
        await puller.assign(await puller.queues("T"))
        assert await puller.poll(timeout=0) == []
        assert telemetry.named("poll T") == []
        fakes.answer(RequestCode.PULL_MESSAGE, refusing(ResponseCode.NO_PERMISSION, "no"))
        with pytest.raises(RefusedError):
            await puller.poll(timeout=0.1)
    async with SimpleConsumer(fakes.namesrv, "CG", "absent", timeout=0.1) as simple:
        with pytest.raises(NoRouteError):
            await simple.receive(wait=0)
    assert telemetry.one("poll T").attributes["error.type"] == "NO_PERMISSION"
    assert telemetry.one("receive absent").attributes["error.type"] == "NoRouteError"


async def test_the_end_of_a_consumer_is_no_failure(fakes: FakeCluster, telemetry: Telemetry):
    consumer = PushConsumer(fakes.namesrv, "CG", "T")
    await consumer.start()
    iterating = asyncio.create_task(anext(consumer, "the end"))
    receiving = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    assert await iterating == "the end"
    with pytest.raises(ClientClosedError):
        await receiving
    assert telemetry.spans == []


async def test_a_commit_has_no_destination_and_an_acknowledgement_may_be_too_late(
    fakes: FakeCluster, telemetry: Telemetry
):
    record = fakes.group.store("T", 0, b"x")
    fakes.answer(RequestCode.POP_MESSAGE, lambda command: answer_to_pop(command, [record]))
    fakes.answer(RequestCode.ACK_MESSAGE, refusing(ResponseCode.NO_MESSAGE, "not held"))
    extended = {"popTime": "5", "invisibleTime": "60000", "reviveQid": "0"}
    fakes.answer(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, answering(**extended))
    async with SimpleConsumer(fakes.namesrv, "CG", "T") as simple:
        (message,) = await simple.receive(1)
        assert await simple.change_invisible(message, 60) is not None
        assert not await simple.ack(message)
    async with PullConsumer(fakes.namesrv, "CG") as puller:
        await puller.assign(await puller.queues("T"))
        await puller.commit()
    assert "error.type" not in telemetry.one("change_invisible T").attributes
    ack = telemetry.one("ack T")
    assert (ack.attributes["error.type"], ack.status.status_code) == ("not_settled", StatusCode.ERROR)
    commit = telemetry.one("commit")
    assert "messaging.destination.name" not in commit.attributes
    assert commit.attributes["messaging.consumer.group.name"] == "CG"


async def test_a_message_that_cannot_be_given_back_is_not_settled(fakes: FakeCluster, telemetry: Telemetry):
    fakes.group.store("T", 0, b"x", b"a\x01b\x01c")  # a property that no client can write again

    async def handler(message: ReceivedMessage) -> None:
        if not message.reconsume_times:
            raise LookupError

    async with PushConsumer(fakes.namesrv, "CG", "T", handler):
        (retry,) = await telemetry.wait_for("retry T")
        await telemetry.wait_for("process T", 2)
    assert retry.attributes["error.type"] == "not_settled"
    assert is_child(retry, telemetry.named("process T")[0])


async def test_a_message_that_does_not_decode_is_a_failed_attempt(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv, codec=TextCodec()) as producer:
        await producer.send("T", "seventeen")

    async def handler(_message: ReceivedMessage[int]) -> None:
        raise AssertionError("the handler gets no such message")

    codec, send = JsonCodec(int), telemetry.one("send T")
    async with PushConsumer(fakes.namesrv, "CG", "T", handler, codec=codec, max_reconsume_times=0):
        (retry,) = await telemetry.wait_for("retry T")
    process = telemetry.one("process T")
    assert (process.status.status_code, process.attributes["error.type"]) == (StatusCode.ERROR, "DecodeError")
    assert "does not decode: JSON is malformed" in process.status.description
    assert is_child(process, send)
    assert is_child(retry, process)
    (stored_properties,) = stored(fakes)
    assert stored_properties.keys() >= {"contentType", "traceparent"}


async def test_messages_of_several_topics_name_theirs_on_their_links(fakes: FakeCluster, telemetry: Telemetry):
    fakes.name_server.topics["U"] = 1
    async with Producer(fakes.namesrv) as producer, PullConsumer(fakes.namesrv, "CG") as puller:
        for topic in ("T", "U"):
            await producer.send(topic, b"x")
        await puller.assign([*await puller.queues("T"), *await puller.queues("U")])
        messages = await puller.poll(timeout=1)
        while len(messages) < 2:
            messages += await puller.poll(timeout=1)
    polls = [span for span in telemetry.spans if span.name.startswith("poll")]
    for poll in polls:
        topics = {link.attributes.get("messaging.destination.name") for link in poll.links}
        assert topics == ({"T", "U"} if poll.name == "poll" else {None})
    assert set().union(*map(linked, polls)) == {telemetry.one(f"send {t}").context.span_id for t in "TU"}


async def test_nothing_is_recorded_where_instrumentation_is_suppressed(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv) as producer, PullConsumer(fakes.namesrv, "CG") as puller:
        await puller.assign(await puller.queues("T"))
        with suppress_instrumentation():
            await producer.send("T", b"x")
            await producer.send_batch("T", [b"y"])
            message = (await puller.poll())[0]
            await puller.commit()
            with processing(message, "CG"):
                pass
    assert telemetry.spans == []
    assert telemetry.points("messaging.client.sent.messages") == []
    assert not any("traceparent" in properties for properties in stored(fakes))


async def test_a_failure_in_processing_is_linked_from_the_next_attempt(fakes: FakeCluster, telemetry: Telemetry):
    properties: dict[str, str] = {}
    with telemetry.tracer.start_as_current_span("elsewhere"):
        inject(properties)
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x", properties=properties)
    async with PushConsumer(fakes.namesrv, "CG", "T", auto_ack=False) as consumer:
        message = await anext(consumer)
    with pytest.raises(LookupError), processing(message, "CG"):
        raise LookupError("no")
    with processing(message, "CG"):
        pass
    with processing(message, "CG"):
        pass
    first, second, third = telemetry.named("process T")
    creation = telemetry.one("elsewhere").context.span_id
    assert (linked(first), linked(third)) == ({creation}, {creation})
    assert linked(second) == {creation, first.context.span_id}
    assert is_child(first, telemetry.one("elsewhere"))


def test_span_contexts_for_later_links_are_limited(monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry):
    monkeypatch.setattr(dledger_otel.interceptor, "MAX_REMEMBERED", 2)
    remembered = Remembered()
    contexts = [telemetry.tracer.start_span("x").get_span_context() for _ in range(3)]
    for number, context in enumerate(contexts):
        remembered.put(number, context)
    assert [remembered.get(number) for number in range(3)] == [None, contexts[1], contexts[2]]
    remembered.forget(1)
    assert remembered.get(1) is None
