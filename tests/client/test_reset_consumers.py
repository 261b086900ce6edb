"""Consumers whose group is reset drop their messages, continue at the new offset, and commit no older offset."""

from __future__ import annotations

import asyncio
import json

import pytest
from client_fakes import until
from consuming import AtWork, ack, fill, is_pull_of, is_read_anew, pulled, take, topic_queues

from dledger_client import ClientError, PullConsumer, PushConsumer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.resets import decode_status, encode_reset
from dledger_remoting.topics import MessageQueue

KEY = ("CG", "T", 0)
Q0 = MessageQueue("broker-a", 0, "T")


def tell_by_pull(cluster, offset):
    """Set the committed offset, and report a reset with the next pull of the queue."""
    node = cluster.group.nodes[0]
    cluster.group.offsets[KEY] = offset

    def answer(command):
        if command.ext["topic"] != "T":
            return make_response(command, ResponseCode.PULL_NOT_FOUND, ext=pull_ext(0, 0))
        del node.on[RequestCode.PULL_MESSAGE]
        return make_response(command, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext=pull_ext(offset, 100))

    node.on[RequestCode.PULL_MESSAGE] = answer


def pull_ext(offset, end):
    return {"suggestWhichBrokerId": "0", "nextBeginOffset": str(offset), "minOffset": "0", "maxOffset": str(end)}


def push(cluster, code, ext, body=b"", *, flag=FLAG_ONEWAY, opaque=1_000_000_002):
    """Let a broker send a request to the only member of the group."""
    cluster.group.offsets.setdefault(KEY, 0)
    (writer,) = cluster.group.members["CG"].values()
    writer.write(encode_command(RemotingCommand(code, opaque=opaque, flag=flag, ext=ext, body=body)))


def tell_by_request(cluster, offset, group="CG"):
    cluster.group.offsets[KEY] = offset
    ext = {"topic": "T", "group": group, "timestamp": "0", "isForce": "true"}
    push(cluster, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, encode_reset({Q0: offset}))


@pytest.mark.parametrize("tell", [tell_by_pull, tell_by_request])
async def test_a_consumer_drops_its_messages_and_continues_at_the_reset_offset(cluster, tell):
    fill(cluster, 40)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        seen = await take(consumer, 5)
        tell(cluster, 30)
        if tell is tell_by_pull:
            cluster.group.store("T", 0, b"0040")  # ends the long poll; the next pull learns of the reset
        await pulled(cluster, 30)
        ack(seen)
        (message,) = await take(consumer, 1)
        assert message.queue_offset == 30
        await consumer.commit()
        assert cluster.group.offsets[KEY] == 30


async def test_a_reset_of_another_group_means_nothing(cluster):
    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        await take(consumer, 1)
        tell_by_request(cluster, 0, group="other")
        assert [message.queue_offset for message in await take(consumer, 2)] == [1, 2]


async def test_a_commit_that_was_taken_before_a_reset_ends_before_the_queue_is_read_again(cluster):
    """A commit of 3 is under way while the group is reset to 1. The commit must not become the last word.

    The broker refuses the commit until a pull confirms the reset. So no such pull may be sent before the commit is
    answered.
    """
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
        ack(await take(consumer, 3))
        handle, node.handle = node.handle, hold
        commit = asyncio.create_task(consumer.commit())
        await waiting.wait()
        tell_by_request(cluster, 1)
        await until(lambda: not topic_queues(consumer) or is_read_anew(consumer))
        assert not any(is_pull_of(command, 1) for command in node.received)
        node.handle = handle
        go_on.set()
        await commit
        await pulled(cluster, 1)
    assert cluster.group.offsets[KEY] == 1


@pytest.mark.parametrize("offsets", [(20,), (20, 30)])
async def test_an_orderly_consumer_finishes_its_message_before_it_follows_resets(cluster, offsets):
    """A first reset makes a new fetcher wait for the work on a message. A second reset's fetcher must wait too."""
    fill(cluster, 40)
    handler = AtWork()
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True, warn_after=0.05) as consumer:
        await handler.begun.wait()
        for offset in offsets:
            tell_by_request(cluster, offset)
            await until(lambda offset=offset: is_read_anew(consumer) and cluster.group.offsets[KEY] == offset)
            await asyncio.sleep(0.05)
        assert handler.seen == [0]
        await until(lambda: consumer.stalled)
        assert [(stall.offset, stall.reason) for stall in consumer.stalled] == [(0, "not finished")]
        handler.finish.set()
        await until(lambda: len(handler.seen) == 41 - offsets[-1])
    assert handler.seen == [0, *range(offsets[-1], 40)]


async def test_a_pull_consumer_continues_at_the_reset_offset(cluster, puller):
    fill(cluster, 9)
    await puller.assign([("T", "broker-a", 0)])
    tell_by_pull(cluster, 7)
    assert [message.queue_offset for message in await puller.poll(timeout=5)] == [7, 8]


async def test_a_consumer_reports_its_offsets(cluster):
    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        first, second, _ = await take(consumer, 3)
        first.ack()
        second.ack()
        push(cluster, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "CG"}, flag=0, opaque=77)
        answers = cluster.group.nodes[0].answers
        await until(lambda: answers)
    assert decode_status(answers[0].body) == {Q0: 2}


async def test_a_broadcast_member_stores_the_reset_offset(cluster, tmp_path):
    fill(cluster, 9)
    path = tmp_path / "offsets.json"
    async with PushConsumer(
        cluster.namesrv, "CG", "T", broadcast=True, offset_file=path, start_from="first", auto_ack=False
    ) as consumer:
        await take(consumer, 5)
        tell_by_request(cluster, 8)
        await pulled(cluster, 8)
        (message,) = await take(consumer, 1)
        assert message.queue_offset == 8
    assert json.loads(path.read_text()) == {"T/broker-a/0": 8, "T/broker-a/0@created": 0}


async def test_a_pull_consumer_ends_earlier_commits_before_it_follows_a_reset(cluster):
    """The broker is busy, so a commit of 3 is repeated. A pull then learns of a reset to 1, and pulls there.

    From then on the broker accepts commits of this consumer, also the repeated one.
    """
    fill(cluster, 3)
    node = cluster.group.nodes[0]
    is_busy, pulled = asyncio.Event(), asyncio.Event()
    handle = node.handle

    async def broker_that_was_reset(command, writer):
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            is_busy.set()
            if not pulled.is_set():
                return make_response(command, ResponseCode.SYSTEM_BUSY, "the group was reset here")
        if is_pull_of(command, 1):
            pulled.set()
        return await handle(command, writer)

    async with PullConsumer(cluster.namesrv, "CG", timeout=1.5) as consumer:
        await consumer.assign([("T", "broker-a", 0)])
        assert len(await consumer.poll(timeout=5)) == 3
        node.handle = broker_that_was_reset
        commit = asyncio.create_task(consumer.commit())
        await is_busy.wait()
        tell_by_pull(cluster, 1)
        assert [message.queue_offset for message in await consumer.poll(timeout=5)] == [1, 2]
        with pytest.raises(ClientError):
            await commit
        assert cluster.group.offsets[KEY] == 1
