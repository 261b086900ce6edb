"""Applications behave the same on a cluster and in memory: each test runs on both."""

from __future__ import annotations

import pytest
from faststream import AckPolicy, BaseMiddleware, Context, Header
from faststream.exceptions import NackMessage, RejectMessage, SetupError
from pydantic import BaseModel
from waiting import until

from dledger_client import DeadlineError, InvalidArgumentError, SendResult, Sql
from dledger_faststream import (
    DledgerBatchMessage,
    DledgerMessage,
    DledgerPublisher,
    DledgerResponse,
    DledgerRoute,
    DledgerRouter,
)


class Order(BaseModel):
    id: int
    region: str = "eu"


async def test_a_handler_gets_the_model_the_headers_and_what_the_message_was_sent_with(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    async def handle(order: Order, message: DledgerMessage, source: str = Header()):
        seen.append((order, source, message.raw_message.keys, message.raw_message.tags, message.correlation_id))
        seen.append((message.content_type, dict(message.headers)))

    async with run(broker):
        result = await broker.publish(
            Order(id=7), topic, key=["a", "b"], tags="new", headers={"source": "web"}, correlation_id="c-1"
        )
        notes = await seen.come(2)
    assert notes[0] == (Order(id=7), "web", ("a", "b"), "new", "c-1")
    assert notes[1] == (
        "application/json",
        {"content-type": "application/json", "correlation_id": "c-1", "source": "web"},
    )
    assert isinstance(result, SendResult)
    assert (result.topic, result.queue_offset) == (topic, 0)


async def test_a_body_of_any_kind_arrives_as_it_was_sent(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    async def handle(message: DledgerMessage):
        seen.append(await message.decode())

    bodies = [b"bytes", "text", {"a": [1]}, 5, b"", Order(id=1), "5", b"x" * 10_000]
    async with run(broker):
        for body in (*bodies, None):
            await broker.publish(body, topic, ordering_key="k")
        assert await seen.come(9) == [*bodies[:5], {"id": 1, "region": "eu"}, *bodies[6:], b""]


async def test_the_result_of_a_handler_goes_to_its_publisher(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    @broker.publisher(f"{topic}-out", headers={"made-by": "bill"}, tags="invoice")
    async def bill(order: Order) -> DledgerResponse:
        return DledgerResponse({"invoice": order.id}, key=f"order-{order.id}")

    @broker.subscriber(f"{topic}-out", group=group + "-out", filter="invoice")
    async def note(message: DledgerMessage):
        seen.append((await message.decode(), message.raw_message.key, message.headers["made-by"]))
        seen.append(message.correlation_id)

    async with run(broker):
        await broker.publish({"id": 3}, topic, correlation_id="c-3")
        assert await seen.come(2) == [({"invoice": 3}, "order-3", "bill"), "c-3"]


@pytest.mark.parametrize("wanted", ["a || b", Sql("TAGS IS NOT NULL AND n <= 2")])
async def test_a_filter_selects_by_tag_or_by_headers(broker, run, topic, group, seen, wanted):
    @broker.subscriber(topic, group=group, filter=wanted)
    async def handle(body: int):
        seen.append(body)

    async with run(broker):
        for number, tags in enumerate(["a", "b", None, "c", "a"]):
            wanted_number = str(9 if tags == "c" else min(number, 2))
            await broker.publish(number, topic, tags=tags, headers={"n": wanted_number})
        assert sorted(await seen.come(3)) == [0, 1, 4]


async def test_a_message_that_is_given_back_comes_again(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    async def handle(body: str, message: DledgerMessage):
        seen.append((body, message.raw_message.reconsume_times))
        if message.raw_message.reconsume_times < 2:
            raise NackMessage(delay_s=0.0)

    async with run(broker):
        await broker.publish("x", topic)
        assert await seen.come(3) == [("x", 0), ("x", 1), ("x", 2)]


@pytest.mark.parametrize("mode", ["push", "simple"])
@pytest.mark.parametrize("by", ["exception", "call"])
async def test_a_rejected_message_is_a_dead_letter_of_the_group(broker, run, topic, group, seen, by, mode):
    @broker.subscriber(topic, group=group, mode=mode)
    async def handle(message: DledgerMessage):
        if by == "exception":
            raise RejectMessage
        await message.reject()

    @broker.subscriber(f"%DLQ%{group}", group=group + "-dead")
    async def bury(body: str, message: DledgerMessage):
        seen.append((body, message.raw_message.topic))

    async with run(broker):
        await broker.publish("x", topic)
        assert await seen.come(1) == [("x", topic)]


async def test_a_message_that_fails_too_often_is_a_dead_letter(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group, max_reconsume_times=1)
    async def handle(body: str):
        seen.append(body)
        raise NackMessage(delay_s=0.0)

    @broker.subscriber(f"%DLQ%{group}", group=group + "-dead")
    async def bury(body: str):
        seen.append(f"dead {body}")

    async with run(broker):
        await broker.publish("x", topic)
        assert await seen.come(3) == ["x", "x", "dead x"]


async def test_a_request_gets_the_result_of_the_handler(broker, run, topic, group):
    @broker.subscriber(topic, group=group)
    async def double(number: int) -> DledgerResponse:
        return DledgerResponse({"twice": 2 * number}, headers={"by": "double"})

    async with run(broker):
        reply = await broker.request(21, topic, correlation_id="c-2", timeout=20.0)
    assert await reply.decode() == {"twice": 42}
    assert (reply.headers["by"], reply.correlation_id, reply.reply_to) == ("double", "c-2", "")


async def test_a_request_that_nobody_replies_to_ends_with_an_error(broker, run, topic, group):
    @broker.subscriber(topic, group=group, no_reply=True)
    async def handle(body: str) -> str:
        return body

    async with run(broker):
        with pytest.raises(DeadlineError) as raised:
            await broker.request("x", topic, timeout=2.0)
    assert raised.value.outcome == "unknown"


async def test_a_result_goes_to_the_topic_that_the_message_names(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    async def double(number: int) -> int:
        return 2 * number

    @broker.subscriber(f"{topic}-answers", group=group + "-answers")
    async def note(number: int, message: DledgerMessage):
        seen.append((number, message.correlation_id))

    async with run(broker):
        await broker.publish(4, topic, reply_to=f"{topic}-answers", correlation_id="c-4")
        assert await seen.come(1) == [(8, "c-4")]


@pytest.mark.parametrize("mode", ["push", "simple"])
async def test_a_batch_is_sent_and_handled_as_one(broker, run, topic, group, seen, mode):
    @broker.subscriber(topic, group=group, batch=True, mode=mode, max_messages=3)
    async def handle(orders: list[Order], message: DledgerBatchMessage):
        assert len(orders) <= 3
        seen.extend(zip(orders, (raw.tags for raw in message.raw_message), message.batch_headers, strict=True))

    async with run(broker):
        await broker.publish_batch(
            Order(id=0),
            DledgerResponse(Order(id=1), tags="second", headers={"own": "yes"}),
            *(Order(id=number) for number in range(2, 5)),
            topic=topic,
            tags="all",
            headers={"shared": "yes"},
        )
        notes = sorted(await seen.come(5), key=lambda note: note[0].id)
    assert [order.id for order, _, _ in notes] == [0, 1, 2, 3, 4]
    assert [tags for _, tags, _ in notes] == ["all", "second", "all", "all", "all"]
    assert ["own" in headers for _, _, headers in notes] == [False, True, False, False, False]
    assert all(headers["shared"] == "yes" for _, _, headers in notes)


async def test_a_batch_publisher_sends_a_list_as_several_messages(broker, run, topic, group, seen):
    """An empty body is a message, too, and an empty list is none."""
    publisher = broker.publisher(f"{topic}-out", batch=True)

    @broker.subscriber(topic, group=group)
    @publisher
    async def split(text: str):
        return None if text == "none" else [word or None for word in text.split(",") if text != "nothing"]

    @broker.subscriber(f"{topic}-out", group=group + "-out")
    async def note(message: DledgerMessage):
        seen.append(message.body)

    async with run(broker):
        for text in ("nothing", "none", ",one,two"):
            await broker.publish(text, topic)
        assert sorted(await seen.come(4)) == [b"", b"", b"one", b"two"]
        assert await publisher.publish() == []
        assert len(await publisher.publish(None, "three")) == 2
        assert sorted(await seen.come(6)) == [b"", b"", b"", b"one", b"three", b"two"]


async def test_a_message_of_a_batch_may_be_settled_by_itself(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group, batch=True)
    async def handle(message: DledgerBatchMessage):
        for raw in message.raw_message:
            seen.append((raw.body, raw.reconsume_times))
            if raw.body == b"1" and not raw.reconsume_times:
                raw.retry(delay_s=0.0)

    async with run(broker):
        await broker.publish_batch(*(b"%d" % number for number in range(3)), topic=topic)
        assert sorted(await seen.come(4)) == [(b"0", 0), (b"1", 0), (b"1", 1), (b"2", 0)]


async def test_a_failed_message_comes_before_its_successors_in_order(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group, mode="ordered", max_workers=4)
    async def handle(number: int, message: DledgerMessage):
        seen.append((number, message.raw_message.reconsume_times))
        if number == 1 and message.raw_message.reconsume_times < 2:
            raise NackMessage(delay_s=0.0)

    async with run(broker):
        for number in range(4):
            await broker.publish(number, topic, ordering_key="account")
        assert await seen.come(6) == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]


async def test_members_of_a_group_share_and_other_groups_get_everything(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    async def one(number: int):
        seen.append(("shared", number))

    @broker.subscriber(topic, group=group)
    async def another(number: int):
        seen.append(("shared", number))

    @broker.subscriber(topic, group=group + "-other")
    async def other(number: int):
        seen.append(("other", number))

    async with run(broker):
        for number in range(8):
            await broker.publish(number, topic)
        notes = await seen.come(16)
    assert sorted(notes) == [(kind, number) for kind in ("other", "shared") for number in range(8)]


async def test_every_broadcast_subscriber_gets_everything(broker, run, topic, group, seen, tmp_path):
    for name in ("one", "two"):

        @broker.subscriber(topic, group=group, mode="broadcast", offset_file=tmp_path / name)
        async def handle(number: int, message: DledgerMessage):
            seen.append((message.raw_message.queue_offset, number))

    async with run(broker):
        await broker.publish(5, topic)
        notes = await seen.come(2)
    assert [number for _, number in notes] == [5, 5]


async def test_a_simple_subscriber_gets_a_message_again_until_it_is_acknowledged(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group, mode="simple", max_workers=4)
    async def handle(body: str, message: DledgerMessage):
        seen.append((body, message.raw_message.reconsume_times))
        if not message.raw_message.reconsume_times:
            await message.nack(delay_s=1.0)

    async with run(broker):
        await broker.publish("job", topic)
        assert await seen.come(2) == [("job", 0), ("job", 1)]


async def test_a_delayed_message_arrives(broker, run, topic, group, seen):
    publisher = broker.publisher(topic, delay_s=0.2)

    @broker.subscriber(topic, group=group)
    async def handle(body: str, message: DledgerMessage):
        seen.append((body, message.raw_message.properties["UNIQ_KEY"]))

    async with run(broker):
        result = await publisher.publish("later", unique_key="alarm-1")
        assert await seen.come(1) == [("later", "alarm-1")]
    assert result is not None
    assert result.message_id == "alarm-1"


async def test_middlewares_see_a_message_and_what_is_made_of_it(broker, run, topic, group, seen):
    class Note(BaseMiddleware):
        def note(self, text):
            if self.msg is None or self.msg.topic == topic:  # not what the mock of the publisher gets
                seen.append(text)

        async def on_receive(self):
            self.note("receive")

        async def consume_scope(self, call_next, message):
            self.note(f"consume {await message.decode()}")
            return await call_next(message)

        async def publish_scope(self, call_next, command):
            self.note(f"publish {command.body} to {command.destination}")
            return await call_next(command)

        async def after_processed(self, exc_type=None, exc_val=None, exc_tb=None):
            self.note("processed")
            return await super().after_processed(exc_type, exc_val, exc_tb)

    broker.add_middleware(Note)

    @broker.subscriber(topic, group=group)
    @broker.publisher(f"{topic}-out")
    async def handle(number: int) -> int:
        return number + 1

    async with run(broker):
        await broker.publish(1, topic)
        notes = await seen.come(5)
    assert notes == [f"publish 1 to {topic}", "receive", "consume 1", f"publish 2 to {topic}-out", "processed"]


async def test_a_router_adds_its_prefix_its_middlewares_and_its_handlers(broker, run, topic, group, seen):
    async def route(number: int) -> int:
        return number + 1

    router = DledgerRouter(
        f"{topic}-",
        handlers=[DledgerRoute(route, "in", group=group, filter="odd", publishers=[DledgerPublisher("out")])],
    )

    @router.subscriber("out", group=group + "-out")
    async def note(number: int, message: DledgerMessage):
        seen.append((number, message.raw_message.topic))

    broker.include_router(router)
    async with run(broker):
        await broker.publish(1, f"{topic}-in", tags="even")
        await broker.publish(2, f"{topic}-in", tags="odd")
        assert await seen.come(1) == [(3, f"{topic}-out")]


async def test_mocks_and_call_assertions_know_what_was_handled(broker, run, topic, group):
    publisher = broker.publisher(f"{topic}-out")

    @broker.subscriber(topic, group=group)
    @publisher
    async def handle(order: Order) -> str:
        return f"order {order.id}"

    async with run(broker):
        await broker.publish({"id": 1, "region": "us"}, topic, headers={"source": "web"})
        await handle.wait_call(20.0)
        handle.mock.assert_called_once_with({"id": 1, "region": "us"})
        await handle.assert_called_once_with(Order(id=1, region="us"), headers={"source": "web"})
        await until(lambda: publisher.mock.called)
        await publisher.assert_called_once_with("order 1")


async def test_the_context_of_a_handler_has_broker_and_message(broker, run, topic, group, seen):
    @broker.subscriber(topic, group=group)
    async def handle(used=Context("broker"), key: str = Context("message.raw_message.key")):  # noqa: B008
        seen.append((used is broker, key))

    async with run(broker):
        await broker.publish(1, topic, key="k")
        assert await seen.come(1) == [(True, "k")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tags": "a || b"}, "no subscription could find it"),
        ({"headers": {"KEYS": "k"}}, "'KEYS' is reserved"),
        ({"headers": {"n": 5}}, "properties"),
        ({"delay_s": 1, "deliver_at": 10**12}, "give one of them"),
    ],
)
async def test_a_publication_that_cannot_be_sent_is_refused_in_one_line(broker, run, topic, arguments, says):
    async with run(broker):
        with pytest.raises(InvalidArgumentError, match=says) as raised:
            await broker.publish("x", topic, **arguments)
    assert "\n" not in str(raised.value)


async def test_a_group_that_reads_different_things_is_refused_before_anything_starts(broker, run, topic, group):
    broker.subscriber(topic, group=group)
    broker.subscriber(f"{topic}-b", group=group)
    with pytest.raises(SetupError, match="all members of a group must read the same"):
        async with run(broker):
            pass


async def test_a_policy_of_the_broker_is_that_of_subscribers_without_one(broker, run, topic, group, seen):
    router = DledgerRouter(ack_policy=AckPolicy.MANUAL)

    @router.subscriber(topic, group=group)
    async def handle(message: DledgerMessage):
        await message.ack()
        seen.append(message.committed)

    broker.include_router(router)
    async with run(broker):
        await broker.publish("x", topic)
        await seen.come(1)
    assert [status.value for status in seen] == ["ACKED"]
