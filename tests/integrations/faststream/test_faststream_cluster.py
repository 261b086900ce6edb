"""Promises of the broker that only a cluster can show: what comes again, what a stop does, and what a failure is."""

from __future__ import annotations

import asyncio
import logging

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import IncorrectState, StopConsume
from waiting import until

from dledger_client import Admin, ClientError, DeadlineError, Producer, PushConsumer, SimpleConsumer
from dledger_faststream import DledgerBroker, DledgerMessage, DledgerRouter, leases


async def committed_offsets(cluster, group, topic):
    """Return the number of messages that the group has committed."""
    async with Admin(cluster.namesrv) as admin:
        return sum(status.committed or 0 for status in await admin.progress(group, topic))


@pytest.mark.parametrize("mode", ["push", "simple"])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_subscriber_without_a_handler_hands_out_messages(real_broker, topic, group, mode, batch):
    subscriber = real_broker.subscriber(topic, group=group, mode=mode, batch=batch)
    async with real_broker:
        await real_broker.start()
        assert await subscriber.get_one(timeout=0.01) is None
        await real_broker.publish("one", topic)
        message = await subscriber.get_one(timeout=20.0)
        assert await message.decode() == (["one"] if batch else "one")
        await message.ack()
        await real_broker.publish("two", topic)
        async for message in subscriber:
            assert await message.decode() == (["two"] if batch else "two")
            await message.ack()
            break


@pytest.mark.parametrize(
    ("policy", "comes_again"),
    [
        ({}, True),
        ({"ack_policy": AckPolicy.NACK_ON_ERROR}, True),
        ({"ack_policy": AckPolicy.ACK}, False),
        ({"ack_policy": AckPolicy.REJECT_ON_ERROR}, False),
    ],
)
async def test_the_policy_says_whether_a_message_comes_again_whose_handler_raised(
    real_broker, topic, group, seen, policy, comes_again
):
    """In the mode "ordered" the message comes again at once, or its successor is next."""

    @real_broker.subscriber(topic, group=group, mode="ordered", **policy)
    async def handle(body: str, message: DledgerMessage):
        seen.append((body, message.raw_message.reconsume_times))
        if len(seen) == 1:
            raise ValueError("not today")

    async with real_broker:
        await real_broker.publish_batch("a", "b", topic=topic, ordering_key="k")
        await real_broker.start()
        notes = await seen.come(2)
    assert notes[:2] == [("a", 0), ("a", 1) if comes_again else ("b", 0)]


@pytest.mark.parametrize(
    ("policy", "returns", "committed"),
    [
        (AckPolicy.ACK_FIRST, False, 1),
        (AckPolicy.NACK_ON_ERROR, False, 0),
        (AckPolicy.NACK_ON_ERROR, True, 1),
        (AckPolicy.MANUAL, True, 0),
    ],
)
async def test_only_an_acknowledged_message_is_committed(cluster, topic, group, seen, policy, returns, committed):
    """A handler that does not return is cut off by the stop."""
    broker = DledgerBroker(cluster.namesrv, logger=None, graceful_timeout=0.05, ack_policy=policy)

    @broker.subscriber(topic, group=group)
    async def handle(body: str):
        seen.append(body)
        if not returns:
            await asyncio.Event().wait()

    async with broker:
        await broker.start()
        await broker.publish("x", topic)
        await seen.come(1)
    assert await committed_offsets(cluster, group, topic) == committed


@pytest.mark.parametrize("mode", ["push", "ordered"])
async def test_a_stop_finishes_and_commits_the_message_in_work_and_begins_no_other(
    cluster, topic, group, seen, mode, caplog
):
    broker = DledgerBroker(cluster.namesrv, logger=None)
    may_end = asyncio.Event()

    @broker.subscriber(topic, group=group, mode=mode)
    async def handle(number: int):
        seen.append(number)
        await may_end.wait()
        seen.append("ended")

    await broker.start()
    for number in range(3):
        await broker.publish(number, topic, ordering_key="k")
    await seen.come(1)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)  # the stop has begun
    may_end.set()
    await stopping
    assert seen == [0, "ended"]
    assert "messages in work" not in caplog.text
    assert await committed_offsets(cluster, group, topic) == 1
    with pytest.raises(IncorrectState):
        await broker.publish(1, topic)


async def test_a_stop_finishes_the_job_in_work_of_a_simple_subscriber(cluster, topic, group, seen):
    broker = DledgerBroker(cluster.namesrv, logger=None)
    may_end = asyncio.Event()

    @broker.subscriber(topic, group=group, mode="simple", invisible=1.0)
    async def handle(number: int):
        seen.append(number)
        await may_end.wait()
        seen.append("ended")

    await broker.start()
    for number in range(2):
        await broker.publish(number, topic)
    await seen.come(1)
    stopping = asyncio.create_task(broker.stop())
    (subscriber,) = broker.subscribers
    await until(subscriber._source._dispatcher.done)
    may_end.set()
    await stopping
    assert seen[1:] == ["ended"]
    async with SimpleConsumer(cluster.namesrv, group, topic) as consumer:
        (rest,) = await consumer.receive()
        assert int(rest.body) == 1 - seen[0]
        assert await consumer.receive(wait=1.5) == []


async def test_a_job_that_a_stop_cuts_off_comes_again(cluster, topic, group, seen, caplog):
    broker = DledgerBroker(cluster.namesrv, logger=None, graceful_timeout=0.05)

    @broker.subscriber(topic, group=group, mode="simple", invisible=1.0)
    async def handle(body: str):
        seen.append(body)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cut off")

    async with broker:
        await broker.start()
        await broker.publish("job", topic)
        await seen.come(1)
    assert seen == ["job", "cut off"]
    assert "1 handlers are cut off; their messages come again" in caplog.messages
    async with SimpleConsumer(cluster.namesrv, group, topic) as consumer:
        (again,) = await consumer.receive(wait=20.0)
    assert again.reconsume_times == 1


async def test_a_message_that_is_acknowledged_first_is_handed_out_acknowledged(cluster, topic, group):
    broker = DledgerBroker(cluster.namesrv, logger=None)
    subscriber = broker.subscriber(topic, group=group, ack_policy=AckPolicy.ACK_FIRST)
    async with broker:
        await broker.start()
        await broker.publish("x", topic)
        assert await subscriber.get_one(timeout=20.0) is not None
    assert await committed_offsets(cluster, group, topic) == 1


async def test_a_batch_waits_to_be_filled(real_broker, topic, group, seen):
    @real_broker.subscriber(topic, group=group, batch=True, max_messages=2, batch_wait=20.0)
    async def handle(numbers: list[int]):
        seen.append(sorted(numbers))

    async with real_broker:
        await real_broker.start()
        for number in range(4):
            await real_broker.publish(number, topic, ordering_key="k")
        assert await seen.come(2) == [[0, 1], [2, 3]]


async def test_an_idempotent_publication_is_stored_once(real_broker, topic):
    async with real_broker:
        first = await real_broker.publish("x", topic, unique_key="order-1", idempotent=True, correlation_id="c")
        second = await real_broker.publish("x", topic, unique_key="order-1", idempotent=True, correlation_id="c")
    assert (first.repeated, second.repeated) == (False, True)
    assert second.queue_offset == first.queue_offset


@pytest.mark.parametrize("mode", ["push", "simple"])
async def test_names_are_those_within_the_namespace(cluster, topic, group, seen, mode):
    broker = DledgerBroker(cluster.namesrv, logger=None, namespace="shop")

    @broker.subscriber(topic, group=group, mode=mode)
    async def handle(body: str, message: DledgerMessage):
        seen.append((body, message.raw_message.topic))

    async with broker:
        await broker.start()
        result = await broker.publish("x", topic)
        assert await seen.come(1) == [("x", topic)]
    assert result.topic == f"shop%{topic}"


@pytest.mark.parametrize("batch", [False, True])
async def test_a_handler_may_stop_its_subscriber(real_broker, topic, group, seen, batch):
    @real_broker.subscriber(topic, group=group, batch=batch, ack_policy=AckPolicy.ACK, max_messages=1)
    async def handle(message: DledgerMessage):
        seen.append(await message.decode())
        raise StopConsume

    async with real_broker:
        await real_broker.start()
        await real_broker.publish(1, topic)
        await seen.come(1)
        (subscriber,) = real_broker.subscribers
        await until(lambda: not subscriber.running)
        await real_broker.publish(2, topic)
    async with PushConsumer(real_broker.config.connection.name_servers, group, topic) as consumer:
        assert (await anext(consumer)).body == b"2"
    assert len(seen) == 1


async def test_a_message_stays_hidden_while_its_handler_works(real_broker, topic, group, seen):
    """The handler works for more than twice the invisible time."""

    @real_broker.subscriber(topic, group=group, mode="simple", invisible=2.0, max_workers=2)
    async def handle(body: str, message: DledgerMessage):
        seen.append(message.raw_message.reconsume_times)
        await asyncio.sleep(5.0)
        seen.append("ended")

    async with real_broker:
        await real_broker.start()
        await real_broker.publish("job", topic)
        await seen.come(2)
    assert seen == [0, "ended"]


async def test_a_message_that_a_manual_handler_left_comes_again_after_the_invisible_time(
    real_broker, topic, group, seen
):
    @real_broker.subscriber(topic, group=group, mode="simple", invisible=1.0, ack_policy=AckPolicy.MANUAL)
    async def handle(message: DledgerMessage):
        seen.append(message.raw_message.reconsume_times)
        if len(seen) == 2:
            await message.ack()

    async with real_broker:
        await real_broker.start()
        await real_broker.publish("job", topic)
        assert await seen.come(2) == [0, 1]


async def test_a_message_that_is_settled_too_late_is_logged(real_broker, topic, group, caplog):
    subscriber = real_broker.subscriber(topic, group=group, mode="simple", invisible=1.0)
    async with real_broker:
        await real_broker.start()
        await real_broker.publish("job", topic)
        message = await subscriber.get_one(timeout=20.0)
        again = await subscriber.get_one(timeout=20.0)
        await message.ack()
        await again.ack()
    assert again.raw_message.reconsume_times == 1
    (record,) = [record for record in caplog.records if record.name == leases.__name__]
    assert record.levelno == logging.WARNING
    assert message.message_id in record.getMessage()


async def test_a_message_is_handled_once_although_its_requester_is_gone(
    real_broker, cluster, topic, group, seen, caplog
):
    @real_broker.subscriber(topic, group=group)
    async def handle(body: str) -> str:
        seen.append(body)
        return body

    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, group="gone") as requester:
        await admin.create_topic(topic, queues=1)
        with pytest.raises(DeadlineError, match="no consumer of topic"):
            await requester.request(topic, b"x", timeout=2.0)
    async with real_broker:
        await real_broker.start()
        await until(lambda: any("did not arrive" in record.getMessage() for record in caplog.records))
        async with asyncio.timeout(20):
            await real_broker.stop()
    assert seen == ["x"]


async def test_a_broker_starts_again_after_a_stop(real_broker, cluster, topic, group, seen):
    @real_broker.subscriber(topic, group=group)
    async def handle(number: int):
        seen.append(number)

    for number in range(2):
        await real_broker.start()
        await real_broker.start()  # changes nothing
        await real_broker.publish(number, topic)
        await seen.come(number + 1)
        await real_broker.stop()
        async with Admin(cluster.namesrv) as admin, asyncio.timeout(10):
            while await admin.members(group):  # noqa: ASYNC110 -- a broker hears of the end a moment later
                await asyncio.sleep(0.01)
    assert seen == [0, 1]


async def test_an_application_runs_until_it_is_told_to_exit(real_broker, topic, group, seen):
    app = FastStream(real_broker, logger=None)
    router = DledgerRouter()

    @router.subscriber(topic, group=group)
    async def handle(body: str):
        seen.append(body)
        app.exit()

    real_broker.include_router(router)

    @app.after_startup
    async def send():
        await real_broker.publish("x", topic)

    async with asyncio.timeout(20):
        await app.run()
    assert seen == ["x"]


async def test_a_ping_tells_whether_the_cluster_has_a_leader(real_broker):
    assert await real_broker.ping(20.0)
    assert not await DledgerBroker("127.0.0.1:1", logger=None).ping(0.2)


async def test_a_broker_that_waits_for_its_cluster_starts_without_one(topic, group):
    broker = DledgerBroker("127.0.0.1:1", logger=None, start_timeout=None)
    broker.subscriber(topic, group=group)
    await broker.start()
    with pytest.raises(ClientError, match=r"no name server of 127.0.0.1:1 answered"):
        await broker.publish("x", topic, timeout=0.2)
    await broker.stop()


async def test_a_dead_cluster_is_one_line_that_names_the_address(topic, group):
    broker = DledgerBroker("127.0.0.1:1", logger=None, start_timeout=0.2)
    broker.subscriber(topic, group=group)
    with pytest.raises(ClientError, match=r"^no name server of 127\.0\.0\.1:1 answered: [^\n]*$"):
        await broker.start()
    await broker.stop()
