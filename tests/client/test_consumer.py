"""A group consumer delivers everything and skips nothing, and its offsets follow the acknowledgements."""

from __future__ import annotations

import asyncio
import os

import pytest
from client_fakes import fake_cluster, until
from consuming import ack, fill, pulled, take

from dledger_client import DeadlineError, InvalidArgumentError, MessageQueue, Producer, PushConsumer, Sql
from dledger_client.consuming.offsets import FileOffsetStore, Position
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.record import SYS_COMPRESSED


async def test_all_messages_arrive_each_queue_in_order():
    async with fake_cluster() as cluster:
        fill(cluster, 100, queues=range(4))
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
async def test_keys_with_other_separators_than_a_blank_stay_whole(cluster, producer, key):
    await producer.send("T", b"x", key=[key, "other"])
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        assert (await anext(consumer)).keys == (key, "other")


async def test_committed_is_the_lowest_unacknowledged_offset(cluster):
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


async def test_the_next_consumer_goes_on_where_the_last_one_stopped():
    async with fake_cluster() as cluster:
        fill(cluster, 50, queues=range(4))
        seen = []
        for _ in range(4):
            async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
                seen += [(message.queue_id, message.queue_offset) for message in await take(consumer, 50)]
        assert len(seen) == len(set(seen)) == 200


@pytest.mark.parametrize(("start_from", "expected"), [("first", b"0000"), ("last", b"new")])
async def test_a_group_without_offsets_begins_at_start_from(cluster, start_from, expected):
    fill(cluster, 5)
    async with PushConsumer(cluster.namesrv, "CG", "T", start_from=start_from) as consumer:
        await until(lambda: RequestCode.PULL_MESSAGE in cluster.group.nodes[0].codes())
        cluster.group.store("T", 0, b"new")
        assert (await take(consumer, 1))[0].body == expected


@pytest.mark.parametrize("count", [0, 5])
async def test_a_start_at_the_last_is_committed_at_once(cluster, count):
    fill(cluster, count)
    async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last"):
        await pulled(cluster, count)
        assert cluster.group.offsets["CG", "T", 0] == count


async def test_only_messages_with_a_subscribed_tag_arrive_and_all_are_committed(cluster):
    fill(cluster, 3, TAGS="red")
    fill(cluster, 3, TAGS="blue")
    fill(cluster, 1, TAGS="green")
    async with PushConsumer(cluster.namesrv, "CG", {"T": "red || green"}) as consumer:
        assert [message.tags for message in await take(consumer, 4)] == ["red"] * 3 + ["green"]
    assert cluster.group.offsets["CG", "T", 0] == 7


async def test_a_handler_runs_concurrently_up_to_its_concurrency(cluster):
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


async def test_messages_before_an_unreadable_message_are_delivered(cluster, caplog):
    fill(cluster, 3)
    cluster.group.store("T", 0, b"no zlib stream", b"", sys_flag=SYS_COMPRESSED)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        assert [message.queue_offset for message in await take(consumer, 3)] == [0, 1, 2]
        await until(lambda: "the message at offset 3 of T/broker-a/0: zlib stream" in caplog.text)
    assert cluster.group.offsets["CG", "T", 0] == 3
    async with PushConsumer(cluster.namesrv, "CG", "T", keep_unreadable=True) as consumer:
        (message,) = await take(consumer, 1)
    assert (message.body, message.fault is None) == (b"no zlib stream", False)


async def test_offsets_that_cannot_be_written_come_again_with_the_next_save(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.touch()
    store = FileOffsetStore(folder / "offsets.json")
    one, two = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
    assert await store.save({one: Position(3, None)}, 0) == set()
    assert "not written" in caplog.text
    folder.unlink()
    assert await store.save({two: Position(4, None)}, 0) == {two}
    assert await FileOffsetStore(folder / "offsets.json").load(one, 0) == 3


async def test_an_offset_file_is_synced_before_it_replaces_the_old_file(tmp_path, monkeypatch):
    path, steps = tmp_path / "offsets.json", []
    monkeypatch.setattr(os, "fsync", lambda _: steps.append(("synced", path.exists())))
    store = FileOffsetStore(path)
    queue = MessageQueue("T", "broker-a", 0)
    assert await store.save({queue: Position(3, None)}, 0) == {queue}
    assert steps == [("synced", False)]
    assert path.exists()


async def test_receive_returns_the_available_messages_and_none_after_its_timeout(cluster):
    fill(cluster, 5)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        messages = await consumer.receive(10, timeout=10)
        assert len(messages) == 5
        assert await consumer.receive(10, timeout=0.01) == []
        ack(messages)
    assert cluster.group.offsets["CG", "T", 0] == 5


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("bad group!", "T"), {}, None),
        (("CG", "bad topic!"), {}, None),
        (("CG", {"T": " || "}), {}, None),
        (("CG", []), {}, None),
        (("CG", "T"), {"broadcast": True}, None),
        (("CG", "T"), {"start_from": -1}, None),
        (("CG", "T"), {"queue_locks": True}, "queue_locks"),
        (("CG", {"T": Sql("amount >")}), {}, "line 1, column 9"),
        (("CG", {"T": "*"}), {"filter": "red"}, "a filter each"),
    ],
)
def test_contradictory_arguments_are_refused(arguments, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        PushConsumer("127.0.0.1:9876", *arguments, **options)


async def test_a_delayed_commit_does_not_undo_the_next_commit(cluster):
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
        ack(messages[1:])
        await asyncio.gather(first, consumer.commit())
        assert cluster.group.offsets["CG", "T", 0] == 4


async def test_a_failed_commit_raises_and_can_be_repeated(cluster):
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
