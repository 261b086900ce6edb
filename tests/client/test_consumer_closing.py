"""When a group consumer closes, finished work is committed, and all waiting callers learn of the close."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import until
from consuming import AtWork, fill, take

from dledger_client import ClientClosedError, PushConsumer
from dledger_remoting.codes import RequestCode


async def test_a_cancelled_program_still_commits_finished_work_and_leaves_the_group(cluster):
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


async def test_a_cancelled_close_leaves_no_task_running(cluster):
    fill(cluster, 1)
    handler = AtWork()
    before = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
    consumer = PushConsumer(cluster.namesrv, "CG", "T", handler)
    await consumer.start()
    await handler.begun.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await consumer.close()
    left = {task.get_coro().__qualname__ for task in asyncio.all_tasks()} - before
    assert not [name for name in left if "Fake" not in name]


async def test_closing_ends_the_iteration_and_leaves_the_group(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        reader = asyncio.create_task(anext(consumer, None))
        await until(lambda: cluster.group.members["CG"])
        await consumer.close()
        assert await reader is None
        await until(lambda: not cluster.group.members["CG"])


async def test_a_second_close_of_a_consumer_waits_for_the_first(cluster):
    fill(cluster, 4)
    node = cluster.group.nodes[0]
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        await take(consumer, 4)
        go_on = node.hold(RequestCode.UPDATE_CONSUMER_OFFSET)
        closing = asyncio.create_task(consumer.close())
        await until(lambda: RequestCode.UPDATE_CONSUMER_OFFSET in node.codes())
        asyncio.get_running_loop().call_soon(go_on.set)
    assert closing.done()


async def test_a_close_by_another_task_waits_for_the_message_in_work(cluster):
    fill(cluster, 4)
    closing = []
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        async for message in consumer:
            if message.queue_offset == 2:
                closing.append(asyncio.create_task(consumer.close()))
                await asyncio.sleep(0.05)
                assert not closing[0].done()
    assert cluster.group.offsets["CG", "T", 0] == 3


async def test_a_handler_may_close_its_consumer(cluster):
    fill(cluster, 1)

    async def handler(_message):
        await consumer.close()

    consumer = PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=2, close_timeout=60)
    async with asyncio.timeout(10), consumer:
        await consumer.run_forever()
    assert cluster.group.offsets["CG", "T", 0] == 1


async def test_closing_an_orderly_consumer_does_not_wait_for_a_pending_retry(cluster):
    fill(cluster, 1)
    tried = asyncio.Event()

    async def handler(message):
        message.retry(delay_s=50)
        tried.set()

    async with asyncio.timeout(10):
        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True, close_timeout=60):
            await tried.wait()
    assert not cluster.group.offsets.get(("CG", "T", 0))
    assert not cluster.group.members["CG"]


async def test_receiving_from_a_closed_consumer_is_an_error_and_no_empty_answer(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await consumer.close()
        for receiving in (waiting, consumer.receive(timeout=1)):
            with pytest.raises(ClientClosedError):
                await receiving
