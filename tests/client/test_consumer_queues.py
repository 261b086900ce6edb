"""Queues of a group consumer may come, go, restart at 0 or become unreadable. No message is skipped or repeated."""

from __future__ import annotations

import asyncio
import logging
import math

import pytest
from client_fakes import HandClock, fake_cluster, refusing, until
from consuming import AtWork, Share, ack, fill, is_read_anew, pulled, take, topic_queues

from dledger_client import MessageQueue, NoRouteError, Producer, PushConsumer
from dledger_client.consuming import assignments
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response


async def test_an_orderly_consumer_goes_on_when_its_queue_begins_anew(cluster):
    fill(cluster, 40)
    handler = AtWork()
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True) as consumer:
        await handler.begun.wait()
        await pulled(cluster, 40)
        cluster.group.queues["T", 0].clear()
        fill(cluster, 2)
        await until(lambda: is_read_anew(consumer))
        assert handler.seen == [0], "one message of a queue at a time, whichever topic it is of"
        handler.finish.set()
        await until(lambda: len(handler.seen) == 3)
    assert handler.seen == [0, 0, 1]
    assert cluster.group.offsets["CG", "T", 0] == 2


async def read(consumer, seen):
    async for message in consumer:
        seen.append((message.queue_id, message.queue_offset))


async def test_two_members_share_the_queues_and_read_everything_once():
    async with fake_cluster(topics={"T": 4}) as cluster:
        seen = []
        async with (
            PushConsumer(cluster.namesrv, "CG", "T") as first,
            PushConsumer(cluster.namesrv, "CG", "T") as second,
        ):
            readers = [asyncio.create_task(read(consumer, seen)) for consumer in (first, second)]
            await until(lambda: {len(topic_queues(member)) for member in (first, second)} == {2})
            assert not topic_queues(first) & topic_queues(second)
            fill(cluster, 100, queues=range(4))
            await until(lambda: len(seen) == 400)
        await asyncio.gather(*readers)
        assert sorted(seen) == [(queue_id, offset) for queue_id in range(4) for offset in range(100)]


async def test_a_member_that_joins_gets_its_share_without_a_message_being_delivered_twice():
    async with fake_cluster(topics={"T": 4}) as cluster, Producer(cluster.namesrv) as producer:
        seen = []

        async def send():
            for number in range(600):
                await producer.send("T", b"%d" % number)
                await asyncio.sleep(0.002)

        async with PushConsumer(cluster.namesrv, "CG", "T") as first:
            sending = asyncio.create_task(send())
            readers = [asyncio.create_task(read(first, seen))]
            await until(lambda: len(seen) >= 50)
            async with PushConsumer(cluster.namesrv, "CG", "T") as second:
                readers.append(asyncio.create_task(read(second, seen)))
                await sending
                await until(lambda: len(seen) == 600)
                assert topic_queues(second)
        await asyncio.gather(*readers)
        assert len(seen) == len(set(seen)) == 600


async def test_a_strategy_that_fails_is_asked_again(cluster, caplog):
    fails = [True]

    def strategy(_client_id, _members, queues):
        if fails and fails.pop():
            raise ZeroDivisionError("a mistake of the application")
        return list(queues)

    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T", strategy=strategy) as consumer:
        assert await take(consumer, 1)
    assert "a mistake of the application" in caplog.text


async def test_messages_acknowledged_after_their_queue_returned_are_not_redelivered(cluster, monkeypatch):
    monkeypatch.setattr(assignments, "RELEASE_SECONDS", 60.0)
    fill(cluster, 3)
    share = Share()
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, strategy=share) as consumer:
        messages = await take(consumer, 3)
        await share.goes_and_comes_back(consumer)
        ack(messages)
        fill(cluster, 1)
        assert [message.queue_offset for message in await take(consumer, 1)] == [3]


async def test_acknowledgements_during_an_offset_query_are_not_committed(cluster, monkeypatch):
    """The answer may be the offset of a reset, which a commit after the query would undo."""
    monkeypatch.setattr(assignments, "RELEASE_SECONDS", 60.0)
    share, asked, answer = Share(), asyncio.Event(), asyncio.Event()

    async def committed_offset(command):
        if command.ext["topic"] == "T":
            asked.set()
            await answer.wait()
        return make_response(command, 0, ext={"offset": "1"})

    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, strategy=share) as consumer:
        messages = await take(consumer, 3)
        cluster.answer(RequestCode.QUERY_CONSUMER_OFFSET, committed_offset)
        await share.goes_and_comes_back(consumer)
        await asked.wait()
        ack(messages)
        await until(lambda: not consumer._running.assignments._releasing)
        answer.set()
        assert [message.queue_offset for message in await take(consumer, 2)] == [1, 2]
        assert cluster.group.offsets.get(("CG", "T", 0)) != 3


async def test_a_commit_for_a_deleted_topic_does_not_apply_to_the_recreated_topic(cluster):
    """The client may learn of a later creation meanwhile. An old offset must not become an offset of the new topic."""
    fill(cluster, 3)
    cluster.group.created["T"] = 77
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        messages = await take(consumer, 3)
        cluster.group.created["T"] = 99
        consumer._running.assignments._store.creations[MessageQueue("T", "broker-a", 0)] = 99
        ack(messages)
        await consumer.commit()
        assert cluster.group.offsets.get(("CG", "T", 0)) != 3


async def test_a_regained_queue_asks_for_its_offset_after_all_earlier_commits(cluster, monkeypatch):
    """The group is reset to 1 while a commit of 3 is repeated. The queue goes and comes back, and its new reader asks.

    From then on the broker accepts commits of this member, so no commit of the earlier reader may be left.
    """
    monkeypatch.setattr(assignments, "_ANSWER_SECONDS", 1.5)
    fill(cluster, 3)
    node, key = cluster.group.nodes[0], ("CG", "T", 0)
    handle, share, is_busy, asked = node.handle, Share(), asyncio.Event(), asyncio.Event()

    async def broker_that_was_reset(command, writer):
        match command.code, command.ext.get("topic"):
            case RequestCode.QUERY_CONSUMER_OFFSET, "T":
                asked.set()
            case RequestCode.UPDATE_CONSUMER_OFFSET, "T":
                is_busy.set()
                if not asked.is_set():
                    return make_response(command, ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]the group was reset here")
        return await handle(command, writer)

    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, strategy=share) as consumer:
        ack(await take(consumer, 3))
        node.handle = broker_that_was_reset
        cluster.group.offsets[key] = 1
        await share.goes_and_comes_back(consumer)
        await is_busy.wait()
        assert [message.queue_offset for message in await take(consumer, 2)] == [1, 2]
        await until(lambda: not consumer._running.assignments._releasing)
        assert cluster.group.offsets[key] == 1


async def test_a_new_leader_is_followed_at_once_and_nothing_is_lost_or_repeated(cluster):
    fill(cluster, 50)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        first = await take(consumer, 50)
        await cluster.group.nodes[0].kill()
        await cluster.group.elect(cluster.group.nodes[1])
        fill(cluster, 50)
        second = await take(consumer, 50)
    assert [message.queue_offset for message in first + second] == list(range(100))
    assert cluster.group.offsets["CG", "T", 0] == 100


@pytest.mark.parametrize("committed", [0, 1, 70])
async def test_an_offset_outside_the_queue_is_moved_to_the_first_that_is_kept(cluster, committed):
    fill(cluster, 5)
    cluster.group.first_offsets["T", 0] = 2
    cluster.group.offsets["CG", "T", 0] = committed
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        assert [message.queue_offset for message in await take(consumer, 3)] == [2, 3, 4]
    assert cluster.group.offsets["CG", "T", 0] == 5


@pytest.mark.parametrize("count", [50, 150])
async def test_a_topic_that_was_deleted_and_made_again_is_read_from_its_first_message(cluster, count):
    """This holds also if the new topic ends behind the consumer's offset, or commits of the earlier topic come late."""
    fill(cluster, 100)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        ack(await take(consumer, 100))
        await pulled(cluster, 100)
        cluster.group.queues["T", 0].clear()
        cluster.group.created["T"] += 1
        await consumer.commit()
        assert ("CG", "T", 0) not in cluster.group.offsets
        fill(cluster, count)
        new = await take(consumer, count)
        assert [message.queue_offset for message in new] == list(range(count))
        new[0].ack()
    assert cluster.group.offsets["CG", "T", 0] == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_messages_of_a_deleted_topic_do_not_affect_the_recreated_topic(cluster, fails):
    """An old message does not acknowledge the new message at the same offset, and does not come back as a copy."""
    fill(cluster, 40)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        old = await take(consumer, 40)
        await pulled(cluster, 40)
        cluster.group.queues["T", 0].clear()
        fill(cluster, 30)
        new = await take(consumer, 30)
        for message in old:
            message.retry() if fails else message.ack()
        await consumer.commit()
        assert cluster.group.offsets["CG", "T", 0] == 0
        ack(new[:10])
        await consumer.commit()
        assert cluster.group.offsets["CG", "T", 0] == 10
    assert not cluster.group.bodies("%RETRY%CG")


@pytest.mark.parametrize("comes", ["topic", "queues"])
async def test_a_group_that_starts_at_the_last_reads_new_queues_from_their_start(comes):
    """This holds also if another member takes over before the first one has received any message."""
    async with fake_cluster(topics={} if comes == "topic" else {"T": 1}) as cluster:
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last", auto_ack=False) as consumer:
            made_later, offsets = consumer._running.core.routes.made_later, cluster.group.offsets
            await until(lambda: "T" in made_later if comes == "topic" else offsets.get(("CG", "T", 0)) == 0)
            fill(cluster, 5, queue_id=1)
            cluster.name_server.topics["T"] = 2
            cluster.name_server.changed()
            assert [message.body for message in await take(consumer, 5)] == [b"%04d" % number for number in range(5)]
        async with PushConsumer(cluster.namesrv, "CG", "T", start_from="last") as other:
            assert len(await take(other, 5)) == 5


async def test_a_missing_topic_is_pulled_at_growing_intervals(cluster):
    def asked():
        return sum(one.ext["topic"] == "T" for one in cluster.requests(RequestCode.PULL_MESSAGE))

    cluster.answer(RequestCode.PULL_MESSAGE, refusing(ResponseCode.TOPIC_NOT_EXIST))
    async with PushConsumer(cluster.namesrv, "CG", "T"):
        await until(asked)
        with HandClock() as clock:
            for _ in range(240):
                clock.advance(0.25)
                for _ in range(20):
                    await asyncio.sleep(0)
    assert 1 < asked() < 10


async def test_a_refused_creation_of_the_group_is_logged_once(cluster, caplog):
    cluster.answer(RequestCode.HEART_BEAT, refusing(14, "the disk of n0 is full"))
    async with PushConsumer(cluster.namesrv, "G", "T"):
        await until(lambda: len(cluster.group.nodes[0].requests(RequestCode.HEART_BEAT)) >= 4)
    assert caplog.text.count("the disk of n0 is full") == 1


async def test_a_topic_that_does_not_exist_is_named_once(cluster, caplog):
    async with PushConsumer(cluster.namesrv, "CG", "tpyo"):
        received = cluster.name_server.received
        await until(lambda: any(record.levelname == "WARNING" for record in caplog.records))
        asked = len(received)
        await until(lambda: sum((command.ext or {}).get("topic") == "tpyo" for command in received[asked:]) > 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["share of tpyo not determined: no route for topic 'tpyo': no registered broker has it"]


async def test_a_topic_that_disappears_again_is_named_again(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        membership = consumer._running.membership
        membership._warn_at["T"] = math.inf  # named already, before it was created
        await membership.assignment(frozenset())
        gone = NoRouteError("T", "no registered broker has it")
        with HandClock() as clock:
            assert membership._log_level_of(gone, "T") == logging.DEBUG
            clock.advance(60)
            assert membership._log_level_of(gone, "T") == logging.WARNING


async def test_a_consumer_sends_a_heartbeat_if_its_subscription_is_unknown(cluster):
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


async def test_a_queue_regained_during_its_release_commits_its_current_progress(cluster):
    fill(cluster, 4)
    node = cluster.group.nodes[0]
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        [first, *_] = await take(consumer, 4)
        first.ack()
        go_on = node.hold(RequestCode.UPDATE_CONSUMER_OFFSET)
        consumer._running.assignments._give_up(first.queue)
        consumer._running.assignments._take_over(first.queue, wait=False)
        ack(await take(consumer, 4))
        committing = asyncio.create_task(consumer.commit())
        await asyncio.sleep(0)
        node.on.clear()
        go_on.set()
        await committing
    assert cluster.group.offsets["CG", "T", 0] == 4


async def test_a_broker_group_without_a_leader_does_not_block_reads_of_others():
    async with fake_cluster(groups=2, topics={"T": 1}) as cluster:
        await cluster.groups[0].elect(None)
        cluster.groups[1].store("T", 0, b"from b")
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            [message] = await take(consumer, 1)
            assert message.body == b"from b"
