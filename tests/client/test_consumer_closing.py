"""End of a group consumer: work that is done is committed, and whoever waits learns of it."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, until
from consuming import fill, take

from dledger_client import (
    ClientClosedError,
    PushConsumer,
)
from dledger_remoting.codes import RequestCode


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


async def test_closing_ends_the_iteration_and_leaves_the_group():
    async with fake_cluster() as cluster:
        consumer = PushConsumer(cluster.namesrv, "CG", "T")
        await consumer.start()
        reader = asyncio.create_task(anext(consumer, None))
        await until(lambda: cluster.group.members["CG"])
        await consumer.close()
        assert await reader is None
        await until(lambda: not cluster.group.members["CG"])


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


async def test_receiving_from_a_closed_consumer_is_an_error_and_no_empty_answer():
    async with fake_cluster(topics={"T": 1}) as cluster, PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await consumer.close()
        for receiving in (waiting, consumer.receive(timeout=1)):
            with pytest.raises(ClientClosedError):
                await receiving
