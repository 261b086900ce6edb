"""Messages that a group consumer could not handle: they come again, once for each failure, or are dead letters."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, until
from consuming import fill, take

import dledger_client.consumer
from dledger_client import (
    PushConsumer,
    retries,
)
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.properties import parse_properties


async def test_a_failed_message_goes_to_the_retry_topic_and_comes_back():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3, KEYS="k")
        seen = []
        finished = asyncio.Event()

        async def handler(message):
            seen.append((message.topic, message.body, message.reconsume_times))
            if message.body == b"0001" and message.reconsume_times < 2:
                raise ValueError("not yet")
            if message.reconsume_times == 2:
                finished.set()

        async with PushConsumer(cluster.namesrv, "CG", "T", handler):
            async with asyncio.timeout(10):
                await finished.wait()
        assert [entry for entry in seen if entry[1] == b"0001"] == [("T", b"0001", number) for number in range(3)]
        assert cluster.group.offsets["CG", "T", 0] == 3
        assert cluster.group.offsets["CG", "%RETRY%CG", 0] == 2
        properties = parse_properties(cluster.group.queues["%RETRY%CG", 0][1].properties)
        assert (properties["RETRY_TOPIC"], properties["RECONSUME_TIME"], properties["KEYS"]) == ("T", "2", "k")


async def test_a_message_that_comes_back_has_the_flag_that_it_was_sent_with():
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.group.store("T", 0, b"x", b"", flag=7)
        flags = []

        async def handler(message):
            flags.append(message.flag)
            if len(flags) == 1:
                raise ValueError("not yet")

        async with PushConsumer(cluster.namesrv, "CG", "T", handler):
            await until(lambda: len(flags) == 2)
        assert flags == [7, 7]


async def test_a_broker_that_takes_messages_back_is_asked_to():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        leader = cluster.group.nodes[0]
        leader.on[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: make_response(command, 0)

        async def handler(_message):
            raise ValueError("never")

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, max_reconsume_times=5) as consumer:
            await until(lambda: RequestCode.CONSUMER_SEND_MSG_BACK in leader.codes())
            while cluster.group.offsets.get(("CG", "T", 0)) != 1:
                await consumer.commit()
        [command] = [command for command in leader.received if command.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert (command.ext["group"], command.ext["originTopic"], command.ext["maxReconsumeTimes"]) == ("CG", "T", "5")
        assert RequestCode.SEND_MESSAGE_V2 not in leader.codes()


@pytest.mark.parametrize(("of_the_group", "options"), [(16, {"max_reconsume_times": 1}), (1, {})])
async def test_a_message_that_failed_too_often_ends_in_the_dead_letter_topic(of_the_group, options):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        cluster.group.retry_max_times = of_the_group
        tries = []

        async def handler(message):
            tries.append(message.reconsume_times)
            raise ValueError("never")

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, **options):
            await until(lambda: cluster.group.bodies("%DLQ%CG"))
        assert cluster.group.bodies("%DLQ%CG") == [b"0000"]
        assert tries == [0, 1]


async def test_an_orderly_consumer_repeats_a_failed_message_before_its_successors():
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 4)
        seen = []
        finished = asyncio.Event()

        async def handler(message):
            seen.append(message.queue_offset)
            if message.queue_offset == 1 and message.reconsume_times < 2:
                raise ValueError("not yet")
            if message.queue_offset == 3:
                finished.set()

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True):
            async with asyncio.timeout(10):
                await finished.wait()
        assert seen == [0, 1, 1, 1, 2, 3]
        assert cluster.group.offsets["CG", "T", 0] == 4


async def test_a_handler_that_gives_a_message_back_and_returns_has_not_acknowledged_its_next_delivery(monkeypatch):
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 0.0)
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        ended, again = [], asyncio.Event()

        async def handler(message):
            if message.queue_offset == 0 and message.reconsume_times == 0:
                message.retry()
                await again.wait()
            elif message.queue_offset == 0:
                again.set()
                await asyncio.sleep(0.05)
            ended.append((message.queue_offset, message.reconsume_times))

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True, concurrency=4):
            await until(lambda: len(ended) == 4)
        assert ended == [(0, 0), (0, 1), (1, 0), (2, 0)]


async def test_an_iterated_message_that_was_given_back_is_not_acknowledged_by_asking_for_the_next_one(monkeypatch):
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 0.0)
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        with pytest.raises(ZeroDivisionError):
            await give_one_back_and_fail_at_the_next(cluster)
        assert cluster.group.offsets.get(("CG", "T", 0), 0) == 0


async def give_one_back_and_fail_at_the_next(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T", orderly=True) as consumer:
        async for message in consumer:
            if message.reconsume_times == 1:
                raise ZeroDivisionError
            assert message.queue_offset == 0
            message.retry()
            await until(lambda: consumer._running.offers)


async def test_a_handler_that_lets_a_cancellation_out_has_failed_like_any_other():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 5)
        seen = []

        async def handler(message):
            seen.append((message.body, message.reconsume_times))
            if message.body == b"0001" and message.reconsume_times == 0:
                other = asyncio.create_task(asyncio.Event().wait())
                other.cancel()
                await other

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=1):
            await until(lambda: (b"0001", 1) in seen)
        assert [body for body, _ in seen] == [b"0000", b"0001", b"0002", b"0003", b"0004", b"0001"]
        assert cluster.group.offsets["CG", "T", 0] == 5


async def test_a_handler_whose_extension_panics_has_failed_like_any_other():
    class Panic(BaseException):
        """As `pyo3_runtime.PanicException`, which a panic in Rust becomes."""

    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 5)
        seen = []

        async def handler(message):
            seen.append((message.body, message.reconsume_times))
            if message.body == b"0001" and message.reconsume_times == 0:
                raise Panic

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=1, close_timeout=0.1):
            await until(lambda: (b"0001", 1) in seen)
        assert [body for body, _ in seen] == [b"0000", b"0001", b"0002", b"0003", b"0004", b"0001"]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("properties", [b"a\x01b\x01c", b"a\x01" + bytes([65]) * 32_700])
async def test_a_message_of_which_there_can_be_no_copy_is_delivered_again(properties, orderly, monkeypatch):
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _: 0.0)
    monkeypatch.setattr(dledger_client.consumer, "_ORDERLY_RECONSUME_TIMES", 1)
    async with fake_cluster(topics={"T": 1}) as cluster:
        leader = cluster.group.nodes[0]

        async def send(command):
            if len(command.ext["i"]) > 32_767:
                return make_response(command, ResponseCode.MESSAGE_ILLEGAL, "the properties are too long")
            return await leader.handle(command, None)

        leader.on[RequestCode.SEND_MESSAGE_V2] = send
        cluster.group.store("T", 0, b"x", properties)
        tries = []

        async def handler(message):
            tries.append(message.reconsume_times)
            if len(tries) < 4:
                raise ValueError("not yet")

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=orderly) as consumer:
            await until(lambda: len(tries) == 4)
            while cluster.group.offsets.get(("CG", "T", 0)) != 1:
                await consumer.commit()
        assert tries == [0, 1, 2, 3]


async def test_a_message_given_back_after_the_close_starts_nothing():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            [message] = await take(consumer, 1)
        before = asyncio.all_tasks()
        message.retry()
        assert asyncio.all_tasks() <= before


async def test_a_failed_message_whose_queue_has_moved_is_left_to_the_next_owner(monkeypatch):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            [message] = await take(consumer, 1)
            running = consumer._started()
            [fetcher] = [one for one in running.assignments._fetchers.values() if one.queue == message.queue]

            def moves_meanwhile(_failures):
                fetcher.revoke()
                running.assignments._fetchers.pop(message.queue, None)
                return 0.0

            monkeypatch.setattr(retries, "pause_seconds", moves_meanwhile)
            message.retry()
            await until(lambda: not fetcher.retrying)
        assert cluster.group.bodies("%RETRY%CG") == []
