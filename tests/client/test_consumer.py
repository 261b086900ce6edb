"""Promises of a group consumer: everything is delivered, nothing is skipped, offsets follow acknowledgements."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, until
from consuming import fill, is_pull_of, take

from dledger_client import (
    DeadlineError,
    InvalidArgumentError,
    MessageQueue,
    Producer,
    PushConsumer,
)
from dledger_client.offsets import FileOffsetStore
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.record import SYS_COMPRESSED


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
