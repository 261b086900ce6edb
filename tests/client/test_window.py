"""Back-pressure keeps its bounds, forgets no waiting task, and serves waiting tasks in order."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.sending.window import InFlightWindow


async def test_requests_and_bytes_are_bounded_and_waiters_served_in_order():
    window = InFlightWindow(2, 100)
    deadline = asyncio.get_running_loop().time() + 60
    entered: list[int] = []

    async def enter(number, size):
        await window.acquire(size, deadline)
        entered.append(number)

    tasks = [asyncio.create_task(enter(number, size)) for number, size in enumerate([60, 60, 10, 10])]
    await asyncio.sleep(0)
    assert entered == [0]
    window.release(60)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert entered == [0, 1, 2]
    window.release(10)
    await asyncio.gather(*tasks)
    assert entered == [0, 1, 2, 3]


async def test_a_request_larger_than_the_window_goes_alone():
    window = InFlightWindow(8, 100)
    await window.acquire(1000, 0)
    with pytest.raises(TimeoutError):
        await window.acquire(1, 0)
    window.release(1000)
    await window.acquire(1, 0)
    assert window.requests == 1


async def test_a_cancelled_acquire_does_not_block_later_ones():
    window = InFlightWindow(8, 100)
    deadline = asyncio.get_running_loop().time() + 60
    await window.acquire(60, deadline)
    large = asyncio.create_task(window.acquire(90, deadline))
    small = asyncio.create_task(window.acquire(10, deadline))
    await asyncio.sleep(0)
    large.cancel()
    await small
    assert window.requests == 2


async def test_an_acquire_cancelled_during_a_release_keeps_no_place():
    window = InFlightWindow(1, 100)
    deadline = asyncio.get_running_loop().time() + 60
    await window.acquire(1, deadline)
    waiting = asyncio.create_task(window.acquire(1, deadline))
    await asyncio.sleep(0)
    waiting.cancel()
    window.release(1)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert window.requests == 0
    await window.acquire(1, deadline)
