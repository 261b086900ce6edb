"""Promises of a group consumer: everything is delivered, nothing is skipped, offsets follow acknowledgements."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock, fake_cluster, until

import dledger_client.consumer
from dledger_client import (
    ClientClosedError,
    DeadlineError,
    InvalidArgumentError,
    MessageQueue,
    Producer,
    PushConsumer,
    assignments,
    retries,
)
from dledger_client.offsets import FileOffsetStore
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.properties import format_properties, parse_properties
from dledger_remoting.record import SYS_COMPRESSED


async def take(consumer, count):
    messages = []
    async with asyncio.timeout(10):
        async for message in consumer:
            messages.append(message)
            if len(messages) == count:
                if consumer._auto_ack:  # as a program would before it leaves the loop
                    message.ack()
                return messages
    raise AssertionError("the consumer was closed")


def fill(cluster, count, topic="T", queue_id=0, **properties):
    for number in range(count):
        cluster.group.store(topic, queue_id, b"%04d" % number, format_properties(properties).encode())


def is_pull_of(command, offset):
    ext = command.ext
    return command.code == RequestCode.PULL_MESSAGE and (ext["topic"], ext["queueOffset"]) == ("T", str(offset))


async def test_all_messages_arrive_each_queue_in_order():
    async with fake_cluster() as cluster:
        for queue_id in range(4):
            fill(cluster, 100, queue_id=queue_id)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            messages = await take(consumer, 400)
        for queue_id in range(4):
            mine = [message.queue_offset for message in messages if message.queue_id == queue_id]
            assert mine == list(range(100))


async def test_a_message_arrives_as_it_was_sent():
    async with fake_cluster() as cluster, Producer(cluster.namesrv) as producer:
        sent = await producer.send("T", b"x" * 9000, key=["k1", "k2"], tags="red", properties={"a": "b"})
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            [message] = await take(consumer, 1)
        assert (message.topic, message.body, message.tags, message.keys) == ("T", b"x" * 9000, "red", ("k1", "k2"))
        assert message.properties["a"] == "b"
        assert (message.message_id, message.offset_message_id) == (sent.message_id, sent.offset_message_id)
        assert message.reconsume_times == 0
        assert message.stored_timestamp_ms >= message.born_timestamp_ms > 0


@pytest.mark.parametrize("key", ["\u8ba2\u5355\u300017", "a\u00a0b", "tab\tkey", "line\nkey", "a\x85b"])
async def test_only_a_blank_separates_keys(key):
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", b"x", key=[key, "other"])
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            assert (await anext(consumer)).keys == (key, "other")


async def test_committed_is_the_lowest_unacknowledged_offset():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 10)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            messages = await take(consumer, 10)
            for message in messages:
                if message.queue_offset != 3:
                    message.ack()
            await consumer.commit()
            assert cluster.group.offsets["CG", "T", 0] == 3
            messages[3].ack()
        assert cluster.group.offsets["CG", "T", 0] == 10


async def test_iterating_acknowledges_what_was_worked_on_and_an_error_does_not():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 10)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            await take(consumer, 4)
        assert cluster.group.offsets["CG", "T", 0] == 4
        with pytest.raises(ZeroDivisionError):
            await take_two_and_fail(cluster)
        assert cluster.group.offsets["CG", "T", 0] == 5


async def take_two_and_fail(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        await anext(consumer)
        await anext(consumer)
        raise ZeroDivisionError


async def test_the_next_consumer_goes_on_where_the_last_one_stopped():
    async with fake_cluster() as cluster:
        for queue_id in range(4):
            fill(cluster, 50, queue_id=queue_id)
        seen = []
        for _ in range(4):
            async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
                seen += [(message.queue_id, message.queue_offset) for message in await take(consumer, 50)]
        assert len(seen) == len(set(seen)) == 200


@pytest.mark.parametrize(("start_from", "expected"), [("first", b"0000"), ("last", b"new")])
async def test_a_group_without_offsets_begins_where_it_is_told(start_from, expected):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 5)
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from=start_from) as consumer:
            await until(lambda: RequestCode.PULL_MESSAGE in cluster.group.nodes[0].codes())
            cluster.group.store("T", 0, b"new", b"")
            assert (await take(consumer, 1))[0].body == expected


@pytest.mark.parametrize("count", [0, 5])
async def test_a_start_at_the_end_is_committed_at_once_so_that_a_crash_skips_nothing(count):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, count)
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last"):
            await until(lambda: any(is_pull_of(command, count) for command in cluster.group.nodes[0].received))
            assert cluster.group.offsets["CG", "T", 0] == count


async def test_only_messages_with_a_subscribed_tag_arrive_and_the_others_are_passed_over():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3, TAGS="red")
        fill(cluster, 3, TAGS="blue")
        fill(cluster, 1, TAGS="green")
        async with PushConsumer(cluster.namesrv, "CG", {"T": "red || green"}) as consumer:
            assert [message.tags for message in await take(consumer, 4)] == ["red"] * 3 + ["green"]
        assert cluster.group.offsets["CG", "T", 0] == 7


async def test_a_handler_runs_as_many_messages_at_a_time_as_it_is_told():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 40)
        running = most = done = 0
        finished = asyncio.Event()

        async def handler(_message):
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            done += 1
            if done == 40:
                finished.set()

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=5):
            async with asyncio.timeout(10):
                await finished.wait()
        assert most == 5
        assert cluster.group.offsets["CG", "T", 0] == 40


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
            await until(lambda: consumer._with_work)


async def test_an_orderly_consumer_goes_on_when_its_queue_begins_anew():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 40)
        working, finish = asyncio.Event(), asyncio.Event()
        seen = []

        async def handler(message):
            seen.append(message.body)
            working.set()
            await finish.wait()

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True):
            await working.wait()
            received = cluster.group.nodes[0].received
            await until(lambda: any(is_pull_of(command, 40) for command in received))
            cluster.group.queues["T", 0].clear()
            cluster.group.store("T", 0, b"first", b"")
            cluster.group.store("T", 0, b"new", b"")
            await until(lambda: any(is_pull_of(command, 2) for command in received))
            finish.set()
            await until(lambda: len(seen) == 3)
        assert seen == [b"0000", b"first", b"new"]
        assert cluster.group.offsets["CG", "T", 0] == 2


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


async def test_a_program_that_gives_up_waiting_for_its_handlers_still_commits_their_work_and_leaves():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 5)
        working, finish = asyncio.Event(), asyncio.Event()

        async def handler(message):
            if message.queue_offset == 4:
                working.set()
                await finish.wait()

        async def program():
            async with PushConsumer(cluster.namesrv, "CG", "T", handler) as consumer:
                try:
                    await consumer.run_forever()
                finally:
                    finish.set()

        running = asyncio.create_task(program())
        await working.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert cluster.group.offsets["CG", "T", 0] == 5
        assert not cluster.group.members["CG"]


async def test_a_close_that_is_given_up_leaves_nothing_running():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        working = asyncio.Event()

        async def handler(_message):
            working.set()
            await asyncio.Event().wait()

        before = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
        consumer = PushConsumer(cluster.namesrv, "CG", "T", handler)
        await consumer.start()
        await working.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer.close()
        left = {task.get_coro().__qualname__ for task in asyncio.all_tasks()} - before
        assert not [name for name in left if "Fake" not in name]


async def test_running_forever_needs_a_handler():
    async with fake_cluster() as cluster, PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        with pytest.raises(InvalidArgumentError, match="no handler"):
            await consumer.run_forever()


async def test_what_comes_before_a_message_that_cannot_be_read_is_delivered(caplog):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        cluster.group.store("T", 0, b"no zlib stream", b"", sys_flag=SYS_COMPRESSED)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            assert [message.queue_offset for message in await take(consumer, 3)] == [0, 1, 2]
            await until(lambda: "the message at offset 3 of T/broker-a/0: zlib stream" in caplog.text)
        assert cluster.group.offsets["CG", "T", 0] == 3


async def test_two_members_share_the_queues_and_read_everything_once():
    async with fake_cluster(topics={"T": 4}) as cluster:
        seen = []

        async def read(consumer):
            async for message in consumer:
                seen.append((message.queue_id, message.queue_offset))  # noqa: PERF401 - seen while it grows

        async with (
            PushConsumer(cluster.namesrv, "CG", "T") as first,
            PushConsumer(cluster.namesrv, "CG", "T") as second,
        ):
            readers = [asyncio.create_task(read(consumer)) for consumer in (first, second)]
            await until(lambda: {len(topic_queues(member)) for member in (first, second)} == {2})
            assert not topic_queues(first) & topic_queues(second)
            for queue_id in range(4):
                fill(cluster, 100, queue_id=queue_id)
            await until(lambda: len(seen) == 400)
        await asyncio.gather(*readers)
        assert sorted(seen) == [(queue_id, offset) for queue_id in range(4) for offset in range(100)]


def topic_queues(consumer):
    return {queue for queue in consumer.assignment if queue.topic == "T"}


async def test_a_member_that_joins_gets_its_share_without_a_message_being_delivered_twice():
    async with fake_cluster(topics={"T": 4}) as cluster, Producer(cluster.namesrv) as producer:
        seen = []

        async def read(consumer):
            async for message in consumer:
                seen.append((message.queue_id, message.queue_offset))  # noqa: PERF401 - seen while it grows

        async def send():
            for number in range(600):
                await producer.send("T", b"%d" % number)
                await asyncio.sleep(0.002)

        async with PushConsumer(cluster.namesrv, "CG", "T") as first:
            sending = asyncio.create_task(send())
            readers = [asyncio.create_task(read(first))]
            await until(lambda: len(seen) >= 50)
            async with PushConsumer(cluster.namesrv, "CG", "T") as second:
                readers.append(asyncio.create_task(read(second)))
                await sending
                await until(lambda: len(seen) == 600)
                assert topic_queues(second)
        await asyncio.gather(*readers)
        assert len(seen) == len(set(seen)) == 600


async def test_a_strategy_that_fails_is_asked_again(caplog):
    calls = []

    def strategy(_client_id, _members, queues):
        calls.append(len(queues))
        if len(calls) == 1:
            raise ZeroDivisionError("a mistake of the application")
        return list(queues)

    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", "T", strategy=strategy) as consumer:
            assert await take(consumer, 1)
    assert "a mistake of the application" in caplog.text


async def test_what_is_acknowledged_after_a_queue_has_gone_and_come_back_is_not_delivered_again(monkeypatch):
    monkeypatch.setattr(assignments, "RELEASE_SECONDS", 60.0)
    share = slice(None)
    committed = asyncio.Event()

    def strategy(_client_id, _members, queues):
        return list(queues)[share]

    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)

        async def committed_offset(command):
            await committed.wait()
            offset = cluster.group.offsets.get(("CG", command.ext["topic"], 0), 0)
            return make_response(command, 0, ext={"offset": str(offset)})

        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, strategy=strategy) as consumer:
            messages = await take(consumer, 3)
            cluster.group.nodes[0].on[RequestCode.QUERY_CONSUMER_OFFSET] = committed_offset
            share = slice(0)
            consumer._running.assignments.rebalance_soon()
            await until(lambda: not topic_queues(consumer))
            share = slice(None)
            consumer._running.assignments.rebalance_soon()
            await until(lambda: topic_queues(consumer))
            for message in messages:
                message.ack()
            await until(lambda: cluster.group.offsets.get(("CG", "T", 0)) == 3)
            committed.set()
            fill(cluster, 1)
            assert [message.queue_offset for message in await take(consumer, 1)] == [3]


async def test_a_new_leader_is_followed_at_once_and_nothing_is_lost_or_repeated():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 50)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            first = await take(consumer, 50)
            await cluster.group.nodes[0].kill()
            await cluster.group.elect(cluster.group.nodes[1])
            for number in range(50):
                cluster.group.store("T", 0, b"later %d" % number, b"")
            second = await take(consumer, 50)
        assert [message.queue_offset for message in first + second] == list(range(100))
        assert cluster.group.offsets["CG", "T", 0] == 100


@pytest.mark.parametrize("committed", [0, 1, 70])
async def test_an_offset_outside_the_queue_is_moved_to_the_first_that_is_kept(committed):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 5)
        cluster.group.first_offsets["T", 0] = 2
        cluster.group.offsets["CG", "T", 0] = committed
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            assert [message.queue_offset for message in await take(consumer, 3)] == [2, 3, 4]
        assert cluster.group.offsets["CG", "T", 0] == 5


async def test_a_topic_that_was_deleted_and_made_again_is_read_from_its_first_message():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 100)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            await take(consumer, 100)
            received = cluster.group.nodes[0].received
            await until(lambda: any(is_pull_of(command, 100) for command in received))
            cluster.group.queues["T", 0].clear()
            fill(cluster, 50)
            assert [message.queue_offset for message in await take(consumer, 50)] == list(range(50))
        assert cluster.group.offsets["CG", "T", 0] == 50


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_handed_out_of_a_topic_says_nothing_of_one_that_is_made_again(fails):
    """Neither is its acknowledgement that of the new message at the same offset, nor does it come back as a copy."""
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 40)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            old = await take(consumer, 40)
            received = cluster.group.nodes[0].received
            await until(lambda: any(is_pull_of(command, 40) for command in received))
            cluster.group.queues["T", 0].clear()
            fill(cluster, 30)
            new = await take(consumer, 30)
            for message in old:
                message.retry() if fails else message.ack()
            await consumer.commit()
            assert cluster.group.offsets["CG", "T", 0] == 0
            for message in new[:10]:
                message.ack()
            await consumer.commit()
            assert cluster.group.offsets["CG", "T", 0] == 10
        assert not cluster.group.bodies("%RETRY%CG")


@pytest.mark.parametrize("comes", ["topic", "queues"])
async def test_a_group_that_starts_at_the_last_reads_what_comes_later_from_its_first_message(comes):
    """Also if another member takes over before the first one has got anything of it."""
    async with fake_cluster(topics={} if comes == "topic" else {"T": 1}) as cluster:
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last", auto_ack=False) as consumer:
            if comes == "topic":
                routes = consumer._running.core.routes
                await until(lambda: "T" in routes.made_later)
            else:
                await until(lambda: cluster.group.offsets.get(("CG", "T", 0)) == 0)
            fill(cluster, 5, queue_id=1)
            cluster.name_server.topics["T"] = 2
            cluster.name_server.changed()
            assert [message.body for message in await take(consumer, 5)] == [b"%04d" % number for number in range(5)]
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last") as other:
            assert len(await take(other, 5)) == 5


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


async def test_a_topic_that_is_gone_is_asked_for_less_and_less():
    async with fake_cluster(topics={"T": 1}) as cluster:
        asked = []

        def gone(command):
            asked.append(command.ext["topic"])
            return make_response(command, ResponseCode.TOPIC_NOT_EXIST, "no such topic")

        for node in cluster.group.nodes:
            node.on[RequestCode.PULL_MESSAGE] = gone
        async with PushConsumer(cluster.namesrv, "CG", "T"):
            await until(lambda: "T" in asked)
            with HandClock() as clock:
                for _ in range(240):
                    clock.advance(0.25)
                    for _ in range(20):
                        await asyncio.sleep(0)
        assert 1 < asked.count("T") < 10


async def test_a_group_that_cannot_be_made_is_said_once(caplog):
    async with fake_cluster() as cluster:
        for node in cluster.group.nodes:
            node.on[RequestCode.HEART_BEAT] = lambda command: make_response(command, 14, "the disk of n0 is full")
        codes = cluster.group.nodes[0].codes
        async with PushConsumer(cluster.namesrv, "G", "T"):
            await until(lambda: codes().count(RequestCode.HEART_BEAT) >= 4)
    assert caplog.text.count("the disk of n0 is full") == 1


async def test_a_topic_that_does_not_exist_is_named_once(caplog):
    async with fake_cluster(topics={"T": 1}) as cluster, PushConsumer(cluster.namesrv, "CG", "tpyo"):
        received = cluster.name_server.received
        await until(lambda: any(record.levelname == "WARNING" for record in caplog.records))
        asked = len(received)
        await until(lambda: sum((command.ext or {}).get("topic") == "tpyo" for command in received[asked:]) > 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["share of tpyo not determined: no route for topic 'tpyo': no registered broker has it"]


async def test_an_unknown_subscription_is_announced_again():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        leader = cluster.group.nodes[0]

        async def forgotten(command):
            if command.ext["topic"] != "T":
                return await leader.handle(command, None)
            del leader.on[RequestCode.PULL_MESSAGE]
            leader.received.clear()
            return make_response(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, "who are you")

        leader.on[RequestCode.PULL_MESSAGE] = forgotten
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            await take(consumer, 1)
            assert RequestCode.HEART_BEAT in leader.codes()


async def test_reading_stops_while_too_much_is_unacknowledged():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 500)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, max_outstanding=64) as consumer:
            messages = await take(consumer, 64)
            pulls = cluster.group.nodes[0].codes().count(RequestCode.PULL_MESSAGE)
            assert pulls == 3
            for message in messages:
                message.ack()
            await take(consumer, 64)


async def test_a_broadcast_member_reads_everything_and_keeps_its_own_offsets(tmp_path):
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 5)
        fill(cluster, 5, queue_id=1)
        for name in ("one", "two"):
            path = tmp_path / f"{name}.json"
            async with PushConsumer(cluster.namesrv, "CG", "T", broadcast=True, offset_file=path) as consumer:
                assert len(await take(consumer, 10)) == 10
        cluster.group.store("T", 0, b"new", b"")
        async with PushConsumer(
            cluster.namesrv, "CG", "T", broadcast=True, offset_file=tmp_path / "one.json"
        ) as consumer:
            assert [message.body for message in await take(consumer, 1)] == [b"new"]
        assert not cluster.group.offsets


async def test_offsets_that_cannot_be_written_come_again_with_the_next_save(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.touch()
    store = FileOffsetStore(folder / "offsets.json")
    one, two = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
    assert await store.save({one: 3}, 0) == set()
    assert "not written" in caplog.text
    folder.unlink()
    assert await store.save({two: 4}, 0) == {two}
    assert await FileOffsetStore(folder / "offsets.json").load(one, 0) == 3


async def test_a_message_given_back_after_the_close_starts_nothing():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            [message] = await take(consumer, 1)
        before = asyncio.all_tasks()
        message.retry()
        assert asyncio.all_tasks() <= before


async def test_closing_ends_the_iteration_and_leaves_the_group():
    async with fake_cluster() as cluster:
        consumer = PushConsumer(cluster.namesrv, "CG", "T")
        await consumer.start()
        reader = asyncio.create_task(anext(consumer, None))
        await until(lambda: cluster.group.members["CG"])
        await consumer.close()
        assert await reader is None
        await until(lambda: not cluster.group.members["CG"])


async def test_receive_gives_what_there_is_and_nothing_after_its_timeout():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 5)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            messages = await consumer.receive(10, timeout=10)
            assert len(messages) == 5
            assert await consumer.receive(10, timeout=0.01) == []
            for message in messages:
                message.ack()
        assert cluster.group.offsets["CG", "T", 0] == 5


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("bad group!", "T"), {}),
        (("CG", "bad topic!"), {}),
        (("CG", {"T": " || "}), {}),
        (("CG", []), {}),
        (("CG", "T"), {"broadcast": True}),
        (("CG", "T"), {"concurrency": 0}),
        (("CG", "T"), {"strategy": "best"}),
        (("CG", "T"), {"start_from": "begin"}),
        (("CG", "T"), {"start_from": -1}),
    ],
)
def test_contradictory_arguments_are_refused(arguments, options):
    with pytest.raises(InvalidArgumentError):
        PushConsumer("127.0.0.1:9876", *arguments, **options)


async def test_who_closes_a_consumer_that_is_closing_waits_for_the_same_end():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 4)
        node, go_on = cluster.group.nodes[0], asyncio.Event()

        async def slow(command):
            await go_on.wait()
            return await node.handle(command, None)

        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            await take(consumer, 4)
            node.on[RequestCode.UPDATE_CONSUMER_OFFSET] = slow
            closing = asyncio.create_task(consumer.close())
            await until(lambda: RequestCode.UPDATE_CONSUMER_OFFSET in node.codes())
            asyncio.get_running_loop().call_soon(go_on.set)
        assert closing.done()


async def test_a_message_in_work_is_finished_and_committed_when_somebody_else_closes_the_consumer():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 4)
        closing = []
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            async for message in consumer:
                if message.queue_offset == 2:
                    closing.append(asyncio.create_task(consumer.close()))
                    await asyncio.sleep(0.05)
                    assert not closing[0].done()
        assert cluster.group.offsets["CG", "T", 0] == 3


async def test_a_handler_may_close_its_consumer():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)

        async def handler(_message):
            await consumer.close()

        consumer = PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=2, close_timeout=60)
        async with asyncio.timeout(10), consumer:
            await consumer.run_forever()
        assert cluster.group.offsets["CG", "T", 0] == 1


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


async def test_a_commit_that_was_held_up_does_not_undo_the_next_one():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 4)
        node = cluster.group.nodes[0]

        def busy_once(command):
            node.on.clear()
            return make_response(command, ResponseCode.SYSTEM_BUSY, "busy")

        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            messages = await take(consumer, 4)
            node.on[RequestCode.UPDATE_CONSUMER_OFFSET] = busy_once
            messages[0].ack()
            first = asyncio.create_task(consumer.commit())
            await asyncio.sleep(0)
            for message in messages[1:]:
                message.ack()
            await asyncio.gather(first, consumer.commit())
            assert cluster.group.offsets["CG", "T", 0] == 4


async def test_a_commit_that_failed_says_so():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            [message] = await take(consumer, 1)
            message.ack()
            refused = cluster.group.nodes[0].on
            refused[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: make_response(command, 16, "no permission")
            with pytest.raises(DeadlineError, match="T/broker-a/0 could not be committed yet"):
                await consumer.commit()
            refused.clear()
            await consumer.commit()
            assert cluster.group.offsets["CG", "T", 0] == 1


async def test_receiving_from_a_closed_consumer_is_an_error_and_no_empty_answer():
    async with fake_cluster(topics={"T": 1}) as cluster, PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await consumer.close()
        for receiving in (waiting, consumer.receive(timeout=1)):
            with pytest.raises(ClientClosedError):
                await receiving


async def test_a_queue_that_comes_back_while_it_is_given_up_is_committed_as_it_is_read_now():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 4)
        node, go_on = cluster.group.nodes[0], asyncio.Event()

        async def slow(command):
            await go_on.wait()
            return await node.handle(command, None)

        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            [first, *_] = await take(consumer, 4)
            first.ack()
            node.on[RequestCode.UPDATE_CONSUMER_OFFSET] = slow
            running = consumer._started()
            running.assignments._give_up(first.queue)
            running.assignments._take_over(first.queue, wait=False)
            for message in await take(consumer, 4):
                message.ack()
            committing = asyncio.create_task(consumer.commit())
            await asyncio.sleep(0)
            node.on.clear()
            go_on.set()
            await committing
        assert cluster.group.offsets["CG", "T", 0] == 4


async def test_a_broker_group_without_a_leader_keeps_nobody_from_reading_the_others():
    async with fake_cluster(groups=2, topics={"T": 1}) as cluster:
        await cluster.groups[0].elect(None)
        cluster.groups[1].store("T", 0, b"from b", b"")
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            [message] = await take(consumer, 1)
            assert message.body == b"from b"
