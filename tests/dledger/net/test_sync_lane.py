"""Syncs on a thread that is not Python's: the loop is told of them, and their files are given back at any end."""

import asyncio
import errno
import os
import types

import pytest

from dledger import native_part
from dledger.environment import AsyncioEnvironment
from dledger.invariants import InvariantError
from dledger.sync_lane import NativeSyncs


class HandThread:
    """A sync thread that syncs when the test says so."""

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
    """A sync that notes how it was done."""

    def __init__(self, descriptors: tuple[int, ...] | None = (7,)) -> None:
        self.descriptors = descriptors
        self.happened: list[object] = []

    def run(self) -> None:
        self.happened.append("run")

    def ended(self, error: OSError | None) -> None:
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


async def test_a_sync_ends_on_the_loop_before_it_is_told(environment, thread):
    ticket, told = Ticket((7, 9)), asyncio.get_running_loop().create_future()
    environment.run_sync(ticket, lambda result: told.set_result((result, list(ticket.happened))))
    assert thread.submitted == [[7, 9]]
    assert ticket.happened == []
    thread.finish()
    assert await told == (None, [None])


async def test_what_a_ticket_makes_of_a_failure_is_told(environment, thread):
    ticket, told = Ticket(), asyncio.get_running_loop().create_future()
    environment.run_sync(ticket, told.set_result)
    thread.finish(errno.EIO)
    assert isinstance(await told, ValueError)
    assert [error.errno for error in ticket.happened] == [errno.EIO]


async def test_a_sync_that_is_more_than_descriptors_runs_on_the_flush_lane(environment, thread):
    ticket, told = Ticket(None), asyncio.get_running_loop().create_future()
    environment.run_sync(ticket, told.set_result)
    assert await told is None
    assert (ticket.happened, thread.submitted) == (["run"], [])


async def test_without_the_native_part_every_sync_runs_on_the_flush_lane(environment, thread):
    environment.native = None
    ticket, told = Ticket(), asyncio.get_running_loop().create_future()
    environment.run_sync(ticket, told.set_result)
    assert await told is None
    assert (ticket.happened, thread.submitted) == (["run"], [])


async def test_a_second_sync_is_refused_while_one_runs(environment, thread):
    environment.run_sync(Ticket(), lambda _: None)
    with pytest.raises(InvariantError):
        environment.run_sync(Ticket(), lambda _: None)


async def test_close_waits_for_the_sync_gives_its_files_back_and_tells(environment, thread):
    ticket, told = Ticket(), asyncio.get_running_loop().create_future()
    environment.run_sync(ticket, told.set_result)
    environment.close()
    assert thread.closed
    assert ticket.happened == [None], "its files are given back before the log is closed"
    assert await told is None


def test_a_sync_that_outlives_the_loop_gives_its_files_back(thread):
    loop = asyncio.new_event_loop()
    syncs, ticket = NativeSyncs(loop, thread), Ticket()
    syncs.submit(ticket, (7,), lambda _: pytest.fail("the loop is closed"))
    loop.close()
    syncs.close()
    assert ticket.happened == [None]
