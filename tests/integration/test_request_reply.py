"""Requests and replies of our client on a real cluster: a reply reaches the requester, also over a killed leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dledger_client import (
    ClientError,
    DeadlineError,
    InvalidArgumentError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RefusedError,
    SyncProducer,
)
from dledger_client.testing import LocalCluster, local_cluster_fixture

PATIENCE_S = 30.0


cluster = local_cluster_fixture()


@asynccontextmanager
async def answering(cluster: LocalCluster, topic: str) -> AsyncIterator[asyncio.Queue[ReceivedMessage]]:
    """Run a consumer that replies with the body. Yield a queue of the messages that it gets."""
    asked: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
    async with Producer(cluster.namesrv, group="answerers", timeout=PATIENCE_S) as producer:

        async def handle(message: ReceivedMessage) -> None:
            asked.put_nowait(message)
            if message.body != b"no answer":
                await producer.reply(message, b"re: " + message.body, properties={"mine": "kept"})

        async with PushConsumer(cluster.namesrv, f"{topic}-answerers", {topic: "*"}, handle):
            yield asked


async def test_each_request_gets_its_own_reply(cluster: LocalCluster) -> None:
    bodies = [b"%d" % number for number in range(20)] + [b"x" * 100_000]
    async with answering(cluster, "questions"), Producer(cluster.namesrv, group="askers") as asker:
        replies = await asyncio.gather(*(asker.request("questions", body, timeout=PATIENCE_S) for body in bodies))
    assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]
    assert {reply.properties["mine"] for reply in replies} == {"kept"}


async def test_a_request_without_a_reply_ends_at_its_deadline_and_its_reply_is_refused_then(
    cluster: LocalCluster,
) -> None:
    async with answering(cluster, "silence") as asked:
        async with Producer(cluster.namesrv, group="askers") as asker:
            with pytest.raises(DeadlineError, match="no consumer of topic silence replied in time") as raised:
                await asker.request("silence", b"no answer", timeout=3.0)
            assert raised.value.outcome == "unknown"
        async with asyncio.timeout(PATIENCE_S):
            message = await asked.get()
        async with Producer(cluster.namesrv, group="late", timeout=4.0) as late:
            with pytest.raises(RefusedError, match="not found: it is connected to no node"):
                await late.reply(message, b"too late")


async def test_an_ordinary_message_is_no_request(cluster: LocalCluster) -> None:
    async with answering(cluster, "statements") as asked, Producer(cluster.namesrv, group="speakers") as speaker:
        await speaker.send("statements", b"no answer")
        async with asyncio.timeout(PATIENCE_S):
            message = await asked.get()
        with pytest.raises(
            InvalidArgumentError, match="is no request: it has no CORRELATION_ID and no REPLY_TO_CLIENT"
        ):
            await speaker.reply(message, b"why?")


async def test_replies_come_over_a_killed_leader(cluster: LocalCluster) -> None:
    async with answering(cluster, "over-a-kill"), Producer(cluster.namesrv, group="askers") as asker:

        async def ask(number: int) -> bytes:
            """Send a request, and repeat it if its reply was lost with the leader."""
            for _ in range(10):
                try:
                    return (await asker.request("over-a-kill", b"%d" % number, timeout=6.0)).body
                except ClientError as error:
                    last = error
            raise last

        first = [await ask(number) for number in range(3)]
        asking = asyncio.gather(*(ask(number) for number in range(3, 20)))
        killed = await asyncio.to_thread(cluster.kill_leader)
        rest = await asking
        assert [*first, *rest] == [b"re: %d" % number for number in range(20)]
        await asyncio.to_thread(cluster.restart, killed)


async def test_a_blocking_producer_asks_and_answers(cluster: LocalCluster) -> None:
    async with answering(cluster, "blocking") as asked:
        with SyncProducer(cluster.namesrv, group="blocking-askers") as asker:
            reply = await asyncio.to_thread(asker.request, "blocking", b"hello", timeout=PATIENCE_S)
            assert reply.body == b"re: hello"
            waiting = asyncio.create_task(
                asyncio.to_thread(asker.request, "blocking", b"no answer", timeout=PATIENCE_S)
            )
            async with asyncio.timeout(PATIENCE_S):
                await asked.get()
                message = await asked.get()
            with SyncProducer(cluster.namesrv, group="blocking-answerers") as answerer:
                await asyncio.to_thread(answerer.reply, message, b"after all")
            assert (await waiting).body == b"after all"
