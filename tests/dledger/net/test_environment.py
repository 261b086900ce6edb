"""The real environment: lanes keep order, and results return to the loop."""

import asyncio
import threading
from pathlib import Path

import pytest

from dledger.environment import (
    COLD,
    FLUSH,
    HARD_STATE,
    MAX_COLD_BACKLOG,
    UNORDERED_THREADS,
    AsyncioEnvironment,
)
from dledger.errors import BusyError
from dledger_base.invariants import InvariantError


@pytest.fixture
async def environment():
    environment = AsyncioEnvironment(asyncio.get_running_loop())
    yield environment
    environment.close()


def outcome(environment, lane, work) -> asyncio.Future:
    future = asyncio.get_running_loop().create_future()
    environment.run_blocking(lane, work, future.set_result)
    return future


@pytest.mark.parametrize("lane", [FLUSH, HARD_STATE])
async def test_a_lane_of_a_single_thread_reports_results_in_order(environment, lane):
    done = []
    threads = set()
    finished = asyncio.Event()

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        return number

    for number in range(500):
        environment.run_blocking(lane, lambda number=number: work(number), done.append)
    environment.run_blocking(lane, lambda: None, lambda _: finished.set())
    async with asyncio.timeout(20):
        await finished.wait()
    assert done == list(range(500))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_lanes_do_not_wait_for_each_other(environment):
    release = threading.Event()
    flush = outcome(environment, FLUSH, lambda: release.wait(20))
    async with asyncio.timeout(20):
        assert await outcome(environment, HARD_STATE, lambda: "voted") == "voted"
    async with asyncio.timeout(20):
        assert await outcome(environment, COLD, lambda: "read") == "read"
    assert not flush.done()
    release.set()
    assert await flush is True


async def test_results_are_reported_on_the_event_loop(environment):
    reported = asyncio.get_running_loop().create_future()
    environment.run_blocking(FLUSH, lambda: 1, lambda _: reported.set_result(threading.get_ident()))
    assert await reported == threading.get_ident()


async def test_an_exception_is_an_outcome(environment):
    def fail() -> None:
        raise OSError(5, "Input/output error")

    error = await outcome(environment, FLUSH, fail)
    assert isinstance(error, OSError)
    assert await outcome(environment, FLUSH, lambda: "next") == "next", "the thread lives on"


async def test_cold_reads_run_side_by_side(environment):
    together = threading.Barrier(UNORDERED_THREADS, timeout=20)
    works = [outcome(environment, COLD, together.wait) for _ in range(UNORDERED_THREADS)]
    assert sorted(await asyncio.gather(*works)) == list(range(UNORDERED_THREADS))


async def test_the_backlog_of_cold_reads_is_bounded(environment):
    release = threading.Event()
    held = [outcome(environment, COLD, lambda: release.wait(20)) for _ in range(MAX_COLD_BACKLOG)]
    refused = await outcome(environment, COLD, lambda: "never")
    assert isinstance(refused, BusyError)
    assert str(MAX_COLD_BACKLOG) in str(refused)
    release.set()
    await asyncio.gather(*held)
    assert await outcome(environment, COLD, lambda: "read") == "read"


async def test_close_finishes_submitted_work_and_accepts_no_more(environment):
    done = []
    for number in range(10):
        environment.run_blocking(FLUSH, lambda number=number: done.append(number), lambda _: None)
    environment.close()
    assert done == list(range(10))
    with pytest.raises(InvariantError):
        environment.run_blocking(FLUSH, lambda: None, lambda _: None)


def test_work_that_outlives_the_loop_is_no_error():
    loop = asyncio.new_event_loop()
    environment = AsyncioEnvironment(loop)
    release = threading.Event()
    environment.run_blocking(FLUSH, lambda: release.wait(20), lambda _: pytest.fail("the loop is closed"))
    loop.close()
    release.set()
    environment.close()


async def test_timers_fire_in_order_unless_cancelled(environment):
    fired = []
    finished = asyncio.Event()
    environment.call_later(0.0, lambda: fired.append("cancelled")).cancel()
    environment.call_later(0.02, lambda: (fired.append("later"), finished.set()))
    environment.call_later(0.001, lambda: fired.append("sooner"))
    async with asyncio.timeout(20):
        await finished.wait()
    assert fired == ["sooner", "later"]


async def test_the_wait_for_a_core_equals_the_kernels_count_for_the_loop_thread(environment):
    before = _waited_for_core_s()
    assert before <= environment.waited_for_core_s() <= _waited_for_core_s()


async def test_the_wait_for_a_core_is_0_without_kernel_statistics(environment, monkeypatch, tmp_path):
    monkeypatch.setattr("dledger.environment._SCHEDULING_OF_THREAD", tmp_path / "schedstat")
    assert environment.waited_for_core_s() == 0
    (tmp_path / "schedstat").write_text("")
    assert environment.waited_for_core_s() == 0


def _waited_for_core_s() -> float:
    counted = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(counted.read_text().split()[1]) / 1e9 if counted.exists() else 0.0
