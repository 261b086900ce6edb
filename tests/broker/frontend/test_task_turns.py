"""Requests that continue in tasks share turns of the event loop, however many a read brings and however large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker, records

from dledger_broker.frontend.task_turns import SLICE_S, WOKEN_PER_TURN, TaskTurns
from dledger_broker.testing.environment import FakeEnvironment
from dledger_broker.views.logreader import LogReader

STEP_S = SLICE_S / 2
"""Time that reading a message takes, in seconds. Three reads fill a turn."""
FULL = 3


async def turns_of(env: FakeEnvironment, count: Callable[[], int], end: int) -> list[int]:
    """Return how much was counted in each turn of the event loop, until the end."""
    counts: list[int] = []
    while count() < end:
        before = count()
        await asyncio.sleep(0)
        env.run_ready()
        counts.append(count() - before)
    return counts


def slow_reads(env: FakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    read = LogReader.record

    async def slow(self: LogReader, position: int) -> object:
        env._now += STEP_S
        return await read(self, position)

    monkeypatch.setattr(LogReader, "record", slow)


def test_a_read_full_of_views_of_messages_is_answered_in_turns(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of 100 bytes reads a message of 4 MiB, and an account without a right to it is refused only then."""
    env, count = broker.memory.env, 50
    client.send_message("T1", b"large")
    offset = str(records(client.pull("T1"))[0].physical_offset)
    client.answers.clear()
    slow_reads(env, monkeypatch)

    async def scenario() -> list[int]:
        for _ in range(count):
            client.send(33, {"offset": offset})
        return await turns_of(env, lambda: len(client.answers), count)

    assert max(asyncio.run(scenario())) <= FULL
    assert {answer.code for answer in client.answers} == {0}


def test_queries_that_look_at_many_messages_share_turns(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, messages, queries = broker.memory.env, 20, 4
    for number in range(messages):
        client.send_message("T1", b"large", properties=f"KEYS\x01{'Aa' if number % 2 else 'BB'}\x02")
    broker.memory.run(broker.memory.machine.keys.catch_up())
    asked = {"topic": "T1", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62), "key": "Aa"}
    client.answers.clear()
    slow_reads(env, monkeypatch)

    async def scenario() -> list[float]:
        for _ in range(queries):
            client.send(12, asked)
        turns: list[float] = []
        while len(client.answers) < queries:
            began = env.now()
            await asyncio.sleep(0)
            env.run_ready()
            turns.append(env.now() - began)
        return turns

    assert max(asyncio.run(scenario())) <= FULL * STEP_S * 1.01
    assert [len(records(answer)) for answer in client.answers] == [messages // 2] * queries


async def test_a_dear_task_does_not_keep_others_waiting() -> None:
    env = FakeEnvironment()
    turns, done = TaskTurns(env), list[str]()

    async def dear() -> None:
        for _ in range(100):
            env._now += 2 * SLICE_S
            await turns.give_way()
        done.append("dear")

    async def cheap(number: int) -> None:
        env._now += SLICE_S / 100
        done.append(str(number))

    tasks = [asyncio.create_task(turns.run(dear()))]
    tasks += [asyncio.create_task(turns.run(cheap(number))) for number in range(2 * WOKEN_PER_TURN)]
    await turns_of(env, lambda: len(done), len(tasks))
    assert done == [*map(str, range(2 * WOKEN_PER_TURN)), "dear"]


async def test_a_task_that_waits_for_its_turn_can_be_cancelled() -> None:
    env = FakeEnvironment()
    turns, cleaned = TaskTurns(env), list[int]()

    async def work(number: int) -> None:
        try:
            env._now += 2 * SLICE_S
            await asyncio.sleep(0)
            await turns.give_way()
        finally:
            cleaned.append(number)

    tasks = [asyncio.create_task(turns.run(work(number))) for number in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*tasks, return_exceptions=True))
    assert cleaned == [0]
    env.run_ready()
