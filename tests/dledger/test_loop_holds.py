"""Holds of the event loop are counted by part of the node. The longest recent hold is logged."""

import asyncio
import gc
import threading
from functools import partial
from pathlib import Path

import pytest
from node_group import leading, until

from dledger.environment import COLD, MAX_COLD_BACKLOG, AsyncioEnvironment
from dledger.errors import BusyError
from dledger.replica.status import BOUNDS_S, TimedLoop
from dledger_base.loop_holds import (
    APPLY,
    COLLECTION,
    LONGEST_WINDOW_S,
    PEERS,
    PROPOSE,
    RESULTS,
    SYNC,
    TICK,
    UNKNOWN,
    Held,
    LoopHolds,
)  # fmt: skip
from dledger_broker.testing import FakeEnvironment


class Clock:
    """Clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def holds(clock: Clock) -> LoopHolds:
    return LoopHolds(clock)


def longest(holds: LoopHolds) -> float:
    (found,) = holds.held()
    return found.longest_seconds


def test_each_part_is_counted_with_its_longest_work(clock: Clock, holds: LoopHolds):
    for seconds in (0.25, 1.0, 0.5):
        with holds.part(APPLY):
            clock.now += seconds
    assert holds.part(APPLY) is holds.part(APPLY)
    assert holds.held() == [Held(APPLY, 3, 1.75, 1.0)]


def test_work_inside_other_work_counts_for_the_inner_part_alone(clock: Clock, holds: LoopHolds):
    with holds.part(PEERS):
        clock.now += 1.0
        with holds.part(SYNC):
            clock.now += 2.0
            with holds.part(PEERS):
                clock.now += 4.0
        clock.now += 8.0
    assert holds.held() == [Held(PEERS, 2, 13.0, 9.0), Held(SYNC, 1, 2.0, 2.0)]


def test_work_that_ends_with_an_exception_is_counted_too(clock: Clock, holds: LoopHolds):
    def fail() -> None:
        clock.now += 1.0
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), holds.part(TICK), holds.part(APPLY):
        fail()
    with holds.part(TICK):
        clock.now += 2.0
    assert holds.held() == [Held(APPLY, 1, 1.0, 1.0), Held(TICK, 2, 2.0, 2.0)]


def test_the_longest_hold_is_forgotten_after_its_window(clock: Clock, holds: LoopHolds):
    with holds.part(APPLY):
        clock.now += 3.0
    clock.now = LONGEST_WINDOW_S
    holds.turn_window()
    with holds.part(APPLY):
        clock.now += 1.0
    assert longest(holds) == 3.0
    clock.now += LONGEST_WINDOW_S / 2
    holds.turn_window()
    assert longest(holds) == 3.0
    clock.now += LONGEST_WINDOW_S / 2
    holds.turn_window()
    assert longest(holds) == 1.0
    clock.now += LONGEST_WINDOW_S
    holds.turn_window()
    assert holds.held() == [Held(APPLY, 2, 4.0, 0.0)]


def test_garbage_collections_are_counted_on_every_thread(holds: LoopHolds):
    holds.begin()
    try:
        gc.collect()
        on_loop = holds.part(COLLECTION).times
        assert on_loop >= 1
        with holds.part(APPLY):
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
        assert holds.part(COLLECTION).times > on_loop
    finally:
        holds.end()
    counted = holds.part(COLLECTION).times
    gc.collect()
    assert holds.part(COLLECTION).times == counted


async def test_work_that_is_put_off_counts_for_its_module(clock: Clock, holds: LoopHolds):
    class Worker:
        def work(self, seconds: float = 1.0) -> None:
            clock.now += seconds

    def work_of_a_part() -> None:
        with holds.part(APPLY):
            clock.now += 4.0

    Worker.work.__module__ = "dledger_broker.features.pop.changes"
    ended = asyncio.get_running_loop().create_future()
    environment = AsyncioEnvironment(asyncio.get_running_loop(), holds)
    for callback in (Worker().work, partial(partial(Worker().work), 2.0), work_of_a_part):
        environment.call_soon(callback)
    environment.call_soon(partial(ended.set_result, None))
    await ended
    held = {found.part: (found.times, found.seconds) for found in holds.held()}
    assert held.pop("features.pop.changes") == (2, 3.0)
    assert held.pop(APPLY) == (1, 4.0)
    assert held == {__name__.rpartition(".")[2]: (1, 0.0), UNKNOWN: (1, 0.0)}


async def test_a_refusal_by_a_full_lane_counts_as_a_result(clock: Clock, holds: LoopHolds):
    environment = AsyncioEnvironment(asyncio.get_running_loop(), holds)
    told = asyncio.get_running_loop().create_future()
    release = threading.Event()

    def refused(error: object) -> None:
        clock.now += 1.0
        told.set_result(error)

    for _ in range(MAX_COLD_BACKLOG):
        environment.run_blocking(COLD, release.wait, lambda _: None)
    environment.run_blocking(COLD, release.wait, refused)
    assert isinstance(await told, BusyError)
    assert holds.held() == [Held(RESULTS, 1, 1.0, 1.0)]
    release.set()
    environment.close()


async def test_a_node_reports_the_work_that_held_its_event_loop(tmp_path: Path):
    callbacks = list(gc.callbacks)
    async with leading(tmp_path) as node:
        await node.append(b"some bytes")
        held = node.status().loop_held
        assert {PROPOSE, SYNC, APPLY} <= {found.part for found in held}
        assert all(found.times > 0 and found.seconds >= 0 for found in held)
        counted = node.status().loop_late.at_most[-1]
        await until(lambda: node.status().loop_late.at_most[-1] > counted + 2, "ticks, each of which is counted")
    assert gc.callbacks == callbacks


class Late(FakeEnvironment):
    """Environment whose timers fire late."""

    def hold(self, seconds: float) -> None:
        """Let time pass without any call."""
        self._now += seconds


def test_timers_are_counted_by_how_late_they_fire():
    env = Late()
    timed = TimedLoop(env)
    fired = []
    for late_s in (0.0, 0.0, 0.001, 0.004, 0.3, 1.5, 60.0):
        timed.call_later(0.05, lambda: fired.append(env.now()))
        env.hold(0.05 + late_s)
        env.advance(0.0)
    assert len(fired) == 7
    found = timed.lateness()
    assert dict(zip(BOUNDS_S, found.at_most, strict=False)) == {
        0.001: 2,
        0.005: 4,
        0.02: 4,
        0.1: 4,
        0.5: 5,
        1.0: 5,
        5.0: 6,
    }
    assert (found.at_most[-1], round(found.seconds, 3)) == (7, 61.805)
