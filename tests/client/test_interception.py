"""An interceptor stands around every kind of call, changes no outcome, and costs nothing while there is none."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager

import pytest
from client_fakes import answer_to_pop, answering, until
from consuming import fill
from msgspec import structs

from dledger_client import (
    ClientClosedError,
    DeadlineError,
    DecodeError,
    Interceptor,
    InvalidArgumentError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    SimpleConsumer,
    SyncConsumer,
    SyncProducer,
    SyncPullConsumer,
    TransactionProducer,
    interception,
)
from dledger_client.codecs import JsonCodec
from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import parse_properties

CLUSTER = {"topics": {"T": 1, "%RETRY%CG": 1}}


class Watch(Interceptor):
    """Notes each call with the error that ended it, and gives messages of sends a property."""

    def __init__(self, value="1"):
        self.calls = []
        self.ends = []
        self.value = value

    @contextmanager
    def _watch(self, call):
        self.calls.append(call)
        try:
            yield
        except BaseException as error:
            self.ends.append((getattr(call, "operation", "handle"), type(error).__name__))
            raise
        else:
            self.ends.append((getattr(call, "operation", "handle"), None))

    receiving = handling = settling = deciding = _watch

    @contextmanager
    def sending(self, call):
        call.messages = [
            structs.replace(message, properties={**(message.properties or {}), "mark": self.value})
            for message in call.messages
        ]
        with self._watch(call):
            yield

    def of(self, operation):
        return [call for call in self.calls if getattr(call, "operation", "handle") == operation]


@pytest.fixture
def watch():
    watch = Watch()
    interception.install(watch)
    yield watch
    interception.uninstall()


def marks(cluster, topic="T"):
    return [parse_properties(record.properties).get("mark") for record in cluster.group.queues[topic, 0]]


async def test_each_send_is_intercepted_with_its_messages_and_results(cluster, watch):
    async with Producer(cluster.namesrv, group="PG", namespace="space") as producer:
        cluster.name_server.topics["space%T"] = 1
        sent = await producer.send("T", b"one", idempotent=True)
        batch = await producer.send_batch("T", [b"two", Message(b"three")])
        await producer.send_oneway("T", b"four")
        await until(lambda: len(marks(cluster, "space%T")) == 4)
    assert marks(cluster, "space%T") == ["1"] * 4
    assert watch.ends == [("send", None), ("send_batch", None), ("send_oneway", None)]
    single, several, oneway = watch.calls
    assert (single.topic, single.caller.group, single.caller.namespace) == ("T", "PG", "space")
    assert single.caller.name_servers == (cluster.namesrv,)
    assert (single.idempotent, list(single.results)) == (True, [sent])
    assert [message.body for message in several.messages] == [b"two", b"three"]
    assert list(several.results) == batch
    assert list(oneway.results) == []


async def test_an_error_of_a_send_is_seen_and_raised(cluster, watch):
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(SendError):
            await producer.send("no-such-topic", b"x", timeout=0.3)
    assert watch.ends == [("send", "SendError")]


async def test_messages_that_an_interceptor_made_too_long_are_sent_as_they_were_given(cluster, watch):
    watch.value = "x" * 40_000
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"one")
        await producer.send_batch("T", [b"two", b"three"])
    assert cluster.group.bodies("T") == [b"one", b"two", b"three"]
    assert marks(cluster) == [None] * 3


async def test_a_call_that_is_wrong_by_itself_raises_once(cluster, watch):
    watch.value = "x" * 40_000
    async with Producer(cluster.namesrv, max_message_bytes=10) as producer:
        with pytest.raises(InvalidArgumentError, match="larger than 10"):
            await producer.send("T", b"x" * 11)
    assert watch.ends == [("send", "InvalidArgumentError")]


async def test_a_refused_send_is_tried_once_unless_the_interceptor_changed_it():
    tried = []

    async def proceed(messages):
        tried.append(messages)
        raise InvalidArgumentError("wrong")

    message = Message(b"x")
    call = interception.SendCall(interception.Caller("c", "g", "", ("h:1",)), "send", "T", [message])
    with pytest.raises(InvalidArgumentError):
        await interception.send(Interceptor(), call, proceed)
    assert tried == [[message]]
    with pytest.raises(InvalidArgumentError):
        await interception.send(Watch(), call, proceed)
    assert [messages[0].properties for messages in tried] == [None, {"mark": "1"}, None]


async def test_handlers_iteration_and_receive_are_intercepted(cluster, watch):
    fill(cluster, 3)
    handled = []

    async def handler(message):
        handled.append((message, [call.message for call in watch.of("handle")]))

    async with PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=1):
        await until(lambda: len(handled) == 3)
    assert [message.body for message, _ in handled] == [b"0000", b"0001", b"0002"]
    assert [around[-1:] for _, around in handled] == [[message] for message, _ in handled]
    assert watch.of("handle")[0].caller.group == "CG"

    fill(cluster, 2)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        first = await anext(consumer)
        (second,) = await consumer.receive()
        await consumer.commit()
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    iterated, cut_off = watch.of("iterate")
    assert (list(iterated.messages), list(cut_off.messages)) == ([first], [])
    assert ("iterate", "CancelledError") in watch.ends
    assert [list(call.messages) for call in watch.of("receive")] == [[second]]
    assert len(watch.of("commit")) == 1


async def test_a_failed_message_is_given_back_within_the_interceptor(cluster, watch):
    fill(cluster, 1)
    cluster.answer(RequestCode.CONSUMER_SEND_MSG_BACK, answering())

    async def handler(_message):
        raise LookupError("no")

    async with PushConsumer(cluster.namesrv, "CG", "T", handler):
        await until(lambda: ("retry", None) in watch.ends)
    (call,) = watch.of("retry")
    assert ([message.body for message in call.messages], call.succeeded) == ([b"0000"], True)


async def test_pulls_and_single_messages_are_intercepted(cluster, watch):
    fill(cluster, 1)
    async with PullConsumer(cluster.namesrv, "CG") as puller:
        await puller.assign(await puller.queues("T"))
        await puller.poll()
        await puller.commit()
    (poll,) = watch.of("poll")
    assert ([message.body for message in poll.messages], poll.topic) == ([b"0000"], "T")
    assert len(watch.of("commit")) == 1

    records = list(cluster.group.queues["T", 0])
    cluster.answer(RequestCode.POP_MESSAGE, lambda command: answer_to_pop(command, [records.pop()] if records else []))
    cluster.answer(RequestCode.ACK_MESSAGE, answering())
    extended = {"popTime": "5", "invisibleTime": "60000", "reviveQid": "0"}
    cluster.answer(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, answering(**extended))
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        (message,) = await consumer.receive(1)
        later = await consumer.change_invisible(message, 60)
        assert await consumer.ack(later)
    (received,) = watch.of("receive")
    assert (list(received.messages), received.topic) == ([message], "T")
    assert [list(call.messages) for call in watch.of("change_invisible")] == [[message]]
    assert [(list(call.messages), call.succeeded) for call in watch.of("ack")] == [([later], True)]


async def test_a_client_that_is_not_started_says_so_to_an_interceptor_too(watch):
    with pytest.raises(ClientClosedError):
        await Producer("127.0.0.1:1").send("T", b"x")
    with pytest.raises(ClientClosedError):
        await PullConsumer("127.0.0.1:1").poll()
    with pytest.raises(ClientClosedError):
        await SimpleConsumer("127.0.0.1:1", "CG", "T").receive()
    with pytest.raises(ClientClosedError):
        await anext(PushConsumer("127.0.0.1:1", "CG", "T"))
    assert watch.ends == []


async def test_a_transaction_is_intercepted_from_its_message_to_its_end(cluster, watch):
    cluster.answer(RequestCode.END_TRANSACTION, answering())

    async def check(_transaction):
        return "rollback"

    async with TransactionProducer(cluster.namesrv, group="PG", check=check) as producer:
        transaction = await producer.begin("T", b"x", unique_key="K")
        await producer.commit(transaction)
        (record,) = cluster.group.queues["T", 0]
        await cluster.group.ask_about(record)
        await until(lambda: ("check", None) in watch.ends)
    assert watch.ends == [("begin", None), ("end", None), ("end", None), ("check", None)]
    ends, (check_back,) = watch.of("end"), watch.of("check")
    assert [(end.topic, end.message_id, end.decision) for end in ends] == [("T", "K", "commit"), ("T", "K", "rollback")]
    assert (check_back.decision, check_back.properties["mark"]) == ("rollback", "1")


def test_blocking_clients_are_intercepted_where_their_caller_calls(threaded_cluster, watch):
    with SyncProducer(threaded_cluster.namesrv) as producer:
        for body in (b"one", b"two"):
            producer.send("T", body)
    with SyncConsumer(threaded_cluster.namesrv, "CG", "T") as consumer:
        first = next(consumer)
        (second,) = consumer.receive(1)
    assert [list(call.messages) for call in (*watch.of("iterate"), *watch.of("receive"))] == [[first], [second]]
    assert marks(threaded_cluster) == ["1", "1"]


NUMBERS = JsonCodec(int)


async def test_sends_of_values_are_intercepted_with_their_bodies_and_content_types(cluster, watch):
    async def check(_transaction):
        return "unknown"

    async with Producer(cluster.namesrv, codec=NUMBERS) as producer:
        await producer.send("T", 1)
        await producer.send_batch("T", [2, Message(3, properties={"contentType": "text/plain"})])
        await producer.send_oneway("T", 4)
        await until(lambda: len(marks(cluster)) == 4)
        with pytest.raises(DeadlineError):
            await producer.request("T", 5, timeout=0.2)
    async with TransactionProducer(cluster.namesrv, group="PG", check=check, codec=NUMBERS) as producer:
        await producer.begin("T", 6)
    sent = [message for call in watch.calls if isinstance(call, interception.SendCall) for message in call.messages]
    assert [message.body for message in sent] == cluster.group.bodies("T") == [b"%d" % number for number in range(1, 7)]
    stored = [parse_properties(record.properties) for record in cluster.group.queues["T", 0]]
    assert [message.properties.items() <= found.items() for message, found in zip(sent, stored, strict=True)] == [
        True
    ] * 6
    types = [message.properties["contentType"] for message in sent]
    assert types == ["application/json"] * 2 + ["text/plain"] + ["application/json"] * 3
    assert marks(cluster) == ["1"] * 6


@pytest.mark.parametrize(("in_order", "given_back"), [(False, "retry"), (True, "dead_letter")])
async def test_work_on_a_message_that_does_not_decode_fails_within_the_interceptor(
    cluster, watch, caplog, in_order, given_back
):
    for body in (b"17", b"seventeen", b"18"):
        cluster.group.store("T", 0, body)
    numbers = []

    async def handler(message):
        numbers.append(message.value)

    options = {"codec": NUMBERS, "orderly": in_order, "max_reconsume_times": 0, "concurrency": 1}
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, **options):
        await until(lambda: (given_back, None) in watch.ends and len(numbers) == 2)
    assert cluster.group.bodies("%DLQ%CG") == [b"seventeen"]
    assert numbers == [17, 18]
    handled = [call.message for call in watch.of("handle")]
    assert [message.body for message in handled] == [b"17", b"seventeen", b"18"]
    assert (handled[0].value, handled[2].value) == (17, 18)
    assert [end for end in watch.ends if end[0] == "handle"] == [
        ("handle", None),
        ("handle", "DecodeError"),
        ("handle", None),
    ]
    assert [[message.body for message in call.messages] for call in watch.of(given_back)] == [[b"seventeen"]]
    (said,) = [record for record in caplog.records if record.name == "dledger_client.messages"]
    assert "it does not decode: JSON is malformed" in said.getMessage()
    assert "handler failed" not in caplog.text


async def test_an_iteration_over_values_is_intercepted_with_the_message_that_decodes(cluster, watch):
    for body in (b"seventeen", b"17"):
        cluster.group.store("T", 0, body)
    async with PushConsumer(cluster.namesrv, "CG", "T", codec=NUMBERS) as consumer:
        message = await anext(consumer)
    assert message.value == 17
    assert [list(call.messages) for call in watch.of("iterate")] == [[message]]


def test_receives_of_values_are_intercepted_with_what_the_application_gets(threaded_cluster, watch):
    with SyncProducer(threaded_cluster.namesrv, codec=NUMBERS) as producer:
        for number in (1, 2):
            producer.send("T", number)
    threaded_cluster.group.store("T", 0, b"three")
    threaded_cluster.group.store("T", 0, b"4")
    with SyncConsumer(threaded_cluster.namesrv, "CG", "T", codec=NUMBERS, max_reconsume_times=0) as consumer:
        first = next(consumer)
        others = consumer.receive()
    with SyncPullConsumer(threaded_cluster.namesrv, "CG2", codec=NUMBERS) as puller:
        puller.assign(puller.queues("T"))
        polled = puller.poll()
    assert [list(call.messages) for call in (*watch.of("iterate"), *watch.of("receive"))] == [[first], others]
    assert [(message.body, message.value) for message in (first, *others)] == [(b"1", 1), (b"2", 2), (b"4", 4)]
    (poll,) = watch.of("poll")
    assert [message.body for message in poll.messages] == [b"1", b"2", b"three", b"4"]
    assert list(poll.messages) == polled
    with pytest.raises(DecodeError):
        _ = poll.messages[2].value
    assert [[message.body for message in call.messages] for call in watch.of("retry")] == [[b"three"]]


async def test_a_client_is_intercepted_from_the_installation_to_the_end_of_it(cluster, producer):
    watch = Watch()
    await producer.send("T", b"before")
    interception.install(watch)
    try:
        await producer.send("T", b"meanwhile")
        with pytest.raises(InvalidArgumentError, match="uninstall it first"):
            interception.install(Watch())
    finally:
        interception.uninstall()
    await producer.send("T", b"after")
    assert marks(cluster) == [None, "1", None]
    assert len(watch.calls) == 1


async def test_without_an_interceptor_nothing_of_the_seam_is_called(cluster, producer):
    fill(cluster, 3)
    record = cluster.group.queues["T", 0][0]
    cluster.answer(RequestCode.POP_MESSAGE, lambda command: answer_to_pop(command, [record]))
    cluster.answer(RequestCode.ACK_MESSAGE, answering())
    handled = asyncio.Event()
    called = set()

    async def handler(message):
        if message.body == b"x":  # sent below, while calls are noted
            handled.set()

    def note(frame, event, _argument):
        if event == "call":
            called.add((frame.f_globals.get("__name__"), frame.f_code.co_name))

    async with (
        PushConsumer(cluster.namesrv, "CG", "T", handler),
        PushConsumer(cluster.namesrv, "other", "T") as consumer,
        PullConsumer(cluster.namesrv, "CG") as puller,
        SimpleConsumer(cluster.namesrv, "CG", "T") as simple,
    ):
        await puller.assign(await puller.queues("T"))
        sys.setprofile(note)
        try:
            await producer.send("T", b"x")
            await producer.send_batch("T", [b"x"])
            await producer.send_oneway("T", b"x")
            (await anext(consumer)).ack()
            await consumer.receive()
            await puller.poll()
            await simple.ack((await simple.receive(1))[0])
            await handled.wait()
        finally:
            sys.setprofile(None)
    roads = {"sending.sender": "deliver", "consuming.handling": "_work", "pull": "_pull", "simple": "_acknowledge"}
    assert {(f"dledger_client.{module}", name) for module, name in roads.items()} <= called
    assert [name for module, name in called if module == "dledger_client.interception"] == []
