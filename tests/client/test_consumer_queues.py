"""Queues of a group consumer that come, go, begin anew or cannot be read: nothing is skipped or told twice."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock, fake_cluster, until
from consuming import fill, is_pull_of, take

from dledger_client import (
    Producer,
    PushConsumer,
    assignments,
)
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response


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
