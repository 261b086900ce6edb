"""A message is acknowledged only if its taker finishes it: not if the taker fails, is cut off, or leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from functools import partial

import pytest
from client_fakes import HandClock, fake_cluster, until
from consuming import fill

from dledger_client import ConcurrentUseError, PushConsumer, SyncConsumer, SyncProducer
from dledger_remoting.codes import RequestCode
from tests.waiting import wait_until


async def commit_of(consumer, cluster):
    await consumer.commit()
    return cluster.group.offsets.get(("CG", "T", 0), 0)


async def test_work_that_is_cut_off_within_the_block_is_not_acknowledged(cluster):
    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        try:
            async with asyncio.timeout(60) as limit:
                async for message in consumer:
                    if message.queue_offset == 1:
                        limit.reschedule(0)
                        await asyncio.Event().wait()
        except TimeoutError:
            pass
    assert cluster.group.offsets["CG", "T", 0] == 1


async def test_work_whose_error_is_caught_within_the_block_is_not_acknowledged(cluster):
    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        try:
            async for message in consumer:
                if message.queue_offset == 1:
                    raise ValueError("cannot process this")
        except ValueError:
            pass
    assert cluster.group.offsets["CG", "T", 0] == 1


async def test_a_task_that_asks_finishes_nothing_of_another_task(cluster):
    fill(cluster, 8)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        mine = await anext(consumer)

        async def other():
            for _ in range(5):
                await anext(consumer)

        await asyncio.create_task(other())
        assert await commit_of(consumer, cluster) == 0
        assert (await anext(consumer)).queue_offset == 6
        assert await commit_of(consumer, cluster) == 5, "the other task ended with message 5 in work"
    assert mine.queue_offset == 0


async def test_several_tasks_share_the_messages_and_all_are_acknowledged(cluster):
    fill(cluster, 300)
    got = []
    async with PushConsumer(cluster.namesrv, "CG", "T", max_outstanding=32) as consumer:

        async def work():
            async for message in consumer:
                got.append(message.queue_offset)
                await asyncio.sleep(0)

        workers = [asyncio.create_task(work()) for _ in range(3)]
        await until(lambda: len(got) == 300)
    await asyncio.gather(*workers)
    assert sorted(got) == list(range(300))
    assert cluster.group.offsets["CG", "T", 0] == 300


async def test_closing_waits_only_for_living_tasks_that_hold_a_message(cluster):
    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T", close_timeout=60) as consumer:
        finish = asyncio.Event()

        async def work(*, then_end):
            await anext(consumer)
            if not then_end:
                await finish.wait()
                await anext(consumer, None)

        workers = [asyncio.create_task(work(then_end=end)) for end in (False, False, True)]
        await workers[2]
        await until(lambda: len(consumer._takers._taken_messages) >= 2)
        closing = asyncio.create_task(consumer.close())
        await until(lambda: consumer._close_task is not None)
        assert not closing.done()
        finish.set()
        await closing
    await asyncio.gather(*workers)
    assert cluster.group.offsets["CG", "T", 0] == 2


async def test_the_taker_is_the_caller_even_if_another_task_waits(cluster):
    fill(cluster, 3)
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        for offset in range(3):
            message = await asyncio.create_task(anext(consumer))
            assert message.queue_offset == offset
            assert await commit_of(consumer, cluster) == offset


async def test_concurrent_anext_calls_are_refused_with_a_hint_to_receive(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        first = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentUseError, match=r"in several tasks, .*receive\(\)"):
            await anext(consumer)
        fill(cluster, 1)
        assert (await first).queue_offset == 0


async def test_a_cancelled_anext_takes_no_message(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        for _ in range(3):
            asking = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait((asking,))
        fill(cluster, 1)
        assert (await anext(consumer)).queue_offset == 0


def test_a_thread_finishes_only_messages_that_the_thread_took(threaded_cluster):
    fill(threaded_cluster, 8)
    with SyncConsumer(threaded_cluster.namesrv, "CG", "T") as consumer:
        mine = next(consumer)
        other = threading.Thread(target=lambda: [next(consumer) for _ in range(5)])
        other.start()
        other.join()
        consumer.commit()
        assert mine.queue_offset == 0
        assert threaded_cluster.group.offsets.get(("CG", "T", 0), 0) == 0
        next(consumer)
        consumer.commit()
        assert threaded_cluster.group.offsets["CG", "T", 0] == 5


def test_an_error_that_is_caught_in_a_blocking_loop_acknowledges_nothing(threaded_cluster):
    fill(threaded_cluster, 3)
    with SyncConsumer(threaded_cluster.namesrv, "CG", "T") as consumer:
        try:
            for message in consumer:
                if message.queue_offset == 1:
                    raise ValueError("cannot process this")
        except ValueError:
            pass
    assert threaded_cluster.group.offsets["CG", "T", 0] == 1


class CutOffError(Exception):
    """Exception of a signal's handler in the waiting thread."""


def test_a_call_that_a_signal_has_cut_off_takes_no_message(threaded_cluster):
    def cut_off(*_):
        raise CutOffError

    before = signal.signal(signal.SIGUSR1, cut_off)
    try:
        with SyncConsumer(threaded_cluster.namesrv, "CG", "T") as consumer:
            waiters = consumer._client._running.offers._waiters
            asks = threading.Semaphore(0)

            def interrupt():
                for _ in range(2):
                    asks.acquire()
                    wait_until(lambda: waiters)
                    os.kill(os.getpid(), signal.SIGUSR1)

            threading.Thread(target=interrupt).start()
            for ask in (partial(next, consumer), partial(consumer.receive, 1)):
                asks.release()
                with pytest.raises(CutOffError):
                    ask()
                wait_until(lambda: not waiters)  # the loop has noticed the end of the call
            with SyncProducer(threaded_cluster.namesrv) as producer:
                producer.send("T", b"x")
            [message] = consumer.receive(1, timeout=10)
            assert message.queue_offset == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_blocking_call_interrupted_at_its_handover_takes_no_message(threaded_cluster, monkeypatch):
    """The signal's handler raises after the task has started, before the caller holds the future."""
    with SyncConsumer(threaded_cluster.namesrv, "CG", "T") as consumer:
        waiters = consumer._client._running.offers._waiters
        hand_over = asyncio.run_coroutine_threadsafe

        def hand_over_and_raise(work, loop):
            hand_over(work, loop)
            wait_until(lambda: waiters)
            raise CutOffError

        for ask in (partial(next, consumer), partial(consumer.receive, 1)):
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "run_coroutine_threadsafe", hand_over_and_raise)
                with pytest.raises(CutOffError):
                    ask()
            wait_until(lambda: not waiters)
        with SyncProducer(threaded_cluster.namesrv) as producer:
            producer.send("T", b"x")
        [message] = consumer.receive(1, timeout=10)
        assert message.queue_offset == 0


def lines(caplog):
    return [record.getMessage() for record in caplog.records if "stands still" in record.getMessage()]


async def test_a_message_that_is_never_finished_is_named_again_and_again_and_counted_once(cluster, caplog):
    fill(cluster, 20)
    async with PushConsumer(cluster.namesrv, "CG", "T", max_outstanding=8, pull_batch_size=8) as consumer:
        await until(lambda: RequestCode.PULL_MESSAGE in cluster.group.nodes[0].codes())
        for _ in range(3):
            await consumer.receive(1)
        with HandClock() as clock:
            await clock.run_for(50)
            assert consumer.stalled == []
            await clock.run_for(69)
            [stall] = consumer.stalled
            assert (stall.offset, stall.reason, stall.taken, stall.waiting) == (0, "not finished", 3, 5)
            assert stall.reading_stopped
            said = len(lines(caplog))
            await clock.run_for(60)
            assert len(lines(caplog)) == said + 1
            assert consumer.stalls == 1
    assert "T/broker-a/0 stands still: the message at offset 0 was taken " in lines(caplog)[0]
    assert "no more are read until then" in lines(caplog)[0]


async def test_messages_that_no_task_asks_for_are_reported_as_stalls(caplog):
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 2, queues=(0, 1))
        async with PushConsumer(cluster.namesrv, "CG", "T", warn_after=5) as consumer:
            await until(lambda: len(consumer._running.offers) == 2)
            with HandClock() as clock:
                await clock.run_for(11)
                await clock.until(lambda: lines(caplog))
                assert {stall.reason for stall in consumer.stalled} == {"not asked for"}
                assert consumer.stalls == 2
        assert "nobody asks for it" in lines(caplog)[0]
        assert "1 more queues stand still" in lines(caplog)[0]
