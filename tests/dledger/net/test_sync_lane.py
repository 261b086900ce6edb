"""Syncs on a native thread: the loop learns their results, and their files are released in every case."""

import asyncio
import errno
import os
import types

import pytest

from dledger.environment import AsyncioEnvironment
from dledger.sync_lane import NativeSyncs
from dledger_base import native_part
from dledger_base.invariants import InvariantError


class HandThread:
    """Sync thread that syncs when the test says so."""

    def __init__(self) -> None:
        self.readable, self._told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.submitted: list[list[int]] = []
        self.running = False
        self.outcome: int | None = None
        self.closed = False

    def fileno(self) -> int:
        return self.readable

    def submit(self, descriptors: list[int]) -> None:
        self.submitted.append(descriptors)
        self.running = True

    def finish(self, code: int = 0) -> None:
        self.running, self.outcome = False, code
        os.write(self._told, b"1")

    def take(self) -> int | None:
        if self.outcome is None:
            return None
        os.read(self.readable, 1)
        code, self.outcome = self.outcome, None
        return code

    def close(self) -> None:
        self.closed = True
        if self.running:
            self.finish()


class Ticket:
    """Sync that records how it ended."""

    def __init__(self, descriptors: tuple[int, ...] | None = (7,)) -> None:
        self.descriptors = descriptors
        self.happened: list[object] = []

    def run(self) -> None:
        self.happened.append("run")

    def finish(self, error: OSError | None) -> None:
        self.happened.append(error)
        if error is not None:
            raise ValueError("what the ticket makes of it") from error


@pytest.fixture
def thread():
    return HandThread()


@pytest.fixture
async def environment(thread, monkeypatch):
    part = types.SimpleNamespace(SyncThread=lambda: thread)
    monkeypatch.setattr(native_part, "PART", part)
    environment = AsyncioEnvironment(asyncio.get_running_loop())
    yield environment
    environment.close()


def begun(environment, descriptors=(7,)):
    """Begin a sync, and return its ticket and the future of its result."""
    ticket, told = Ticket(descriptors), asyncio.get_running_loop().create_future()
    environment.run_sync(ticket, lambda result: told.set_result((result, list(ticket.happened))))
    return ticket, told


async def test_a_sync_ticket_ends_before_its_result_is_reported_and_no_second_sync_runs_meanwhile(environment, thread):
    ticket, told = begun(environment, (7, 9))
    assert thread.submitted == [[7, 9]]
    assert ticket.happened == []
    with pytest.raises(InvariantError):
        environment.run_sync(Ticket(), lambda _: None)
    thread.finish()
    assert await told == (None, [None])


async def test_a_failed_sync_reports_the_error_that_its_ticket_returns(environment, thread):
    ticket, told = begun(environment)
    thread.finish(errno.EIO)
    assert isinstance((await told)[0], ValueError)
    assert [error.errno for error in ticket.happened] == [errno.EIO]


@pytest.mark.parametrize("native", [True, False])
async def test_a_sync_without_plain_descriptors_or_the_native_part_runs_on_the_flush_lane(environment, thread, native):
    if not native:
        environment.native = None
    _, told = begun(environment, None if native else (7,))
    assert await told == (None, ["run"])
    assert thread.submitted == []


async def test_close_waits_for_the_sync_gives_its_files_back_and_tells(environment, thread):
    ticket, told = begun(environment)
    environment.close()
    assert thread.closed
    assert ticket.happened == [None], "its files are given back before the log is closed"
    assert (await told)[0] is None


def test_a_sync_that_outlives_the_loop_gives_its_files_back(thread):
    loop = asyncio.new_event_loop()
    syncs, ticket = NativeSyncs(loop, thread), Ticket()
    syncs.submit(ticket, (7,), lambda _: pytest.fail("the loop is closed"))
    loop.close()
    syncs.close()
    assert ticket.happened == [None]
