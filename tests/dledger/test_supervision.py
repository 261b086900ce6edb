"""A task that must not end is started again after any end."""

import asyncio
import logging

import pytest

from dledger_base.invariants import InvariantError
from dledger_base.supervision import STABLE_S, supervise


class Work:
    """Work that raises each of `failures` in turn, and then waits for ever."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.restarts = 0
        self.lives = asyncio.Event()

    async def run(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.lives.set()
        await asyncio.Event().wait()

    def count(self) -> None:
        self.restarts += 1

    async def outlive(self, pauses: list[float] | None = None, seconds_lived: float = 0.0) -> None:
        """Run supervised until all failures are over, without real pauses. Each run lasts `seconds_lived`."""
        times = iter(range(100))

        async def note(seconds: float) -> None:
            if pauses is not None:
                pauses.append(seconds)

        task = asyncio.create_task(
            supervise(self.run, "the work", self.count, now=lambda: next(times) * seconds_lived, sleep=note)
        )
        async with asyncio.timeout(20):
            await self.lives.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
def pauses() -> list[float]:
    return []


async def test_an_exception_is_logged_and_counted_and_the_task_goes_on_after_a_growing_pause(
    caplog: pytest.LogCaptureFixture, pauses: list[float]
) -> None:
    caplog.set_level(logging.ERROR)
    work = Work(*(KeyError(f"number {number}") for number in range(9)))
    await work.outlive(pauses)
    assert work.restarts == 9
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-2:] == [5.0, 5.0]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 9
    assert "event=task_restarted task='the work' error=KeyError('number 0') again_s=0.05" in lines[0]
    assert caplog.records[0].exc_info is not None


async def test_after_a_long_life_the_pause_is_short_again(pauses: list[float]) -> None:
    await Work(KeyError(1), KeyError(2), KeyError(3)).outlive(pauses, STABLE_S)
    assert pauses == [0.05, 0.05, 0.05]


async def test_an_unrequested_cancellation_restarts_supervised_work() -> None:
    work = Work(asyncio.CancelledError())
    await work.outlive()
    assert work.restarts == 1


async def test_a_cancelled_supervised_task_ends_even_in_a_pause() -> None:
    paused = asyncio.Event()

    async def pause(_seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    work = Work(KeyError("once"))
    task = asyncio.create_task(supervise(work.run, "the work", work.count, sleep=pause))
    await paused.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.lives.is_set()


async def test_supervised_work_that_returns_is_not_restarted() -> None:
    runs = []

    async def once() -> None:
        runs.append(1)

    await supervise(once, "the work", lambda: None)
    assert runs == [1]


async def test_a_broken_invariant_is_also_reported_to_the_event_loop() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    error = InvariantError("broken")
    await Work(error, KeyError("no invariant")).outlive()
    assert told == [error]
