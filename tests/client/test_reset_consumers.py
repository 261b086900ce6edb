"""Consumers whose group is reset: they drop what they have, go on where they are told, and commit nothing older."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, until
from consuming import fill, is_pull_of, take

from dledger_client import PullConsumer, PushConsumer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.resets import decode_status, encode_reset
from dledger_remoting.topics import MessageQueue

KEY = ("CG", "T", 0)
Q0 = MessageQueue("broker-a", 0, "T")


def tell_by_pull(cluster, offset):
    """Have the next pull of the queue be told that the group was reset, and the committed offset be that one."""
    node = cluster.group.nodes[0]
    cluster.group.offsets[KEY] = offset

    def answer(command):
        if command.ext["topic"] != "T":
            return make_response(command, ResponseCode.PULL_NOT_FOUND, ext=pull_ext(0, 0))
        del node.on[RequestCode.PULL_MESSAGE]
        return make_response(command, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext=pull_ext(offset, 100))

    node.on[RequestCode.PULL_MESSAGE] = answer


def pull_ext(offset, end):
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(offset),
        "minOffset": "0",
        "maxOffset": str(end),
    }


def push(cluster, code, ext, body=b"", *, flag=FLAG_ONEWAY, opaque=1_000_000_002):
    """Have a broker ask the one member of the group."""
    cluster.group.offsets.setdefault(KEY, 0)
    (writer,) = cluster.group.members["CG"].values()
    writer.write(encode_command(RemotingCommand(code, opaque=opaque, flag=flag, ext=ext, body=body)))


def tell_by_request(cluster, offset, group="CG"):
    cluster.group.offsets[KEY] = offset
    ext = {"topic": "T", "group": group, "timestamp": "0", "isForce": "true"}
    push(cluster, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, encode_reset({Q0: offset}))


@pytest.mark.parametrize("tell", [tell_by_pull, tell_by_request])
async def test_a_consumer_drops_what_it_has_and_goes_on_where_it_is_told(tell):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 40)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            seen = await take(consumer, 5)
            tell(cluster, 30)
            if tell is tell_by_pull:
                cluster.group.store("T", 0, b"0040", b"")  # wakes the long poll, whose next one is told
            received = cluster.group.nodes[0].received
            await until(lambda: any(is_pull_of(command, 30) for command in received))
            for message in seen:
                message.ack()
            (message,) = await take(consumer, 1)
            assert message.queue_offset == 30
            await consumer.commit()
            assert cluster.group.offsets[KEY] == 30


async def test_a_reset_of_another_group_means_nothing():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            await take(consumer, 1)
            tell_by_request(cluster, 0, group="other")
            assert [message.queue_offset for message in await take(consumer, 2)] == [1, 2]


async def test_a_commit_that_was_taken_before_a_reset_ends_before_the_queue_is_read_again():
    """1. a commit of 3 is under way; 2. the group is reset to 1; 3. the commit arrives, and must not be the last word.

    The broker refuses it, as long as no pull says that the reset was seen: so none may be sent before it has an answer.
    """
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        node = cluster.group.nodes[0]
        waiting, go_on = asyncio.Event(), asyncio.Event()

        async def hold(command, _writer):
            if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                waiting.set()
                await go_on.wait()
                return make_response(command, 0)
            return await handle(command, _writer)

        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            for message in await take(consumer, 3):
                message.ack()
            handle, node.handle = node.handle, hold
            commit = asyncio.create_task(consumer.commit())
            await waiting.wait()
            tell_by_request(cluster, 1)
            await until(lambda: not [one for one in consumer.assignment if one.topic == "T"] or _is_read_anew(consumer))
            assert not any(is_pull_of(command, 1) for command in node.received)
            node.handle = handle
            go_on.set()
            await commit
            await until(lambda: any(is_pull_of(command, 1) for command in node.received))
        assert cluster.group.offsets[KEY] == 1


def _is_read_anew(consumer):
    assignments = consumer._running.assignments
    return any(one.queue.topic == "T" and one.progress is None for one in assignments.fetchers())


async def test_an_orderly_consumer_works_on_one_message_of_a_queue_though_it_is_reset():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 40)
        working, finish = asyncio.Event(), asyncio.Event()
        seen = []

        async def handler(message):
            seen.append(message.queue_offset)
            working.set()
            await finish.wait()

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True) as consumer:
            await working.wait()
            tell_by_request(cluster, 20)
            await until(lambda: _is_read_anew(consumer))
            assert seen == [0]
            finish.set()
            await until(lambda: len(seen) == 21)
        assert seen == [0, *range(20, 40)]


async def test_a_pull_consumer_goes_on_where_it_is_told():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 9)
        async with PullConsumer(cluster.namesrv, "CG") as consumer:
            await consumer.assign([("T", "broker-a", 0)])
            tell_by_pull(cluster, 7)
            messages = await consumer.poll(timeout=5)
            assert [message.queue_offset for message in messages] == [7, 8]


async def test_a_consumer_says_where_it_is():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            first, second, _ = await take(consumer, 3)
            first.ack()
            second.ack()
            push(
                cluster,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                {"topic": "T", "group": "CG"},
                flag=0,
                opaque=77,
            )
            answers = cluster.group.nodes[0].answers
            await until(lambda: answers)
        assert decode_status(answers[0].body) == {Q0: 2}


async def test_a_broadcast_member_that_is_told_keeps_it(tmp_path):
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 9)
        path = tmp_path / "offsets.json"
        async with PushConsumer(
            cluster.namesrv, "CG", "T", broadcast=True, offset_file=path, start_from="first", auto_ack=False
        ) as consumer:
            await take(consumer, 5)
            tell_by_request(cluster, 8)
            received = cluster.group.nodes[0].received
            await until(lambda: any(is_pull_of(command, 8) for command in received))
            (message,) = await take(consumer, 1)
            assert message.queue_offset == 8
        assert path.read_text() == '{"T/broker-a/0":8}'
