"""The native sync thread syncs its files, reports the end through a descriptor, and names the failed one."""

import asyncio
import errno
import os
import select

import pytest
import uvloop

from dledger.sync_lane import NativeSyncs

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

WAIT_MS = 60_000


@pytest.fixture
def thread():
    thread = native.SyncThread()
    yield thread
    thread.close()


@pytest.fixture
def descriptor(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def outcome(thread) -> int | None:
    """Wait until the thread reports an end, and return its outcome."""
    poll = select.poll()
    poll.register(thread.fileno(), select.POLLIN)
    assert poll.poll(WAIT_MS), "the thread has not told"
    return thread.take()


def is_readable(thread) -> bool:
    poll = select.poll()
    poll.register(thread.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_a_sync_outcome_is_reported_once(thread, descriptor):
    assert thread.take() is None
    for _ in range(100):
        os.pwrite(descriptor, b"bytes", 0)
        thread.submit([descriptor, descriptor])
        assert outcome(thread) == 0
        assert thread.take() is None
        assert not is_readable(thread)


def test_a_sync_reports_its_first_failure(thread, descriptor):
    reader, writer = os.pipe()
    os.close(writer)
    closed = os.dup(reader)
    os.close(closed)
    for descriptors, code in (([closed], errno.EBADF), ([descriptor, reader, closed], errno.EINVAL), ([descriptor], 0)):
        thread.submit(descriptors)
        assert outcome(thread) == code
    os.close(reader)


def test_a_second_sync_is_refused_until_the_outcome_is_taken(thread, descriptor):
    thread.submit([descriptor])
    with pytest.raises(RuntimeError, match="a sync is under way"):
        thread.submit([descriptor])
    assert outcome(thread) == 0
    thread.submit([descriptor])
    assert outcome(thread) == 0


def test_close_waits_for_what_was_submitted(descriptor):
    for _ in range(50):
        thread = native.SyncThread()
        thread.submit([descriptor])
        thread.close()
        assert thread.take() == 0
        thread.close()
        with pytest.raises(RuntimeError, match="closed"):
            thread.submit([descriptor])


@pytest.mark.parametrize("wrong", [[1 << 40], ["1"], 7, None])
def test_invalid_descriptor_lists_are_refused(thread, wrong):
    with pytest.raises((TypeError, OverflowError)):
        thread.submit(wrong)


class Ticket:
    """Repeated sync of one file."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread, descriptor: int, rounds: int) -> None:
        self.syncs = NativeSyncs(loop, thread)
        self.descriptors = [descriptor]
        self.left = rounds
        self.ended_all = loop.create_future()

    def run(self) -> None:
        raise AssertionError("the native thread does it")

    def finish(self, error: OSError | None) -> None:
        assert error is None
        self.left -= 1

    def go_on(self, result: BaseException | None = None) -> None:
        assert result is None
        if self.left:
            self.syncs.submit(self, self.descriptors, self.go_on)
        else:
            self.ended_all.set_result(None)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_event_loop_is_notified_of_each_sync(new_loop, descriptor):
    async def sync_often() -> None:
        ticket = Ticket(asyncio.get_running_loop(), native.SyncThread(), descriptor, 500)
        ticket.go_on()
        async with asyncio.timeout(60):
            await ticket.ended_all
        ticket.syncs.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(sync_often())


def test_a_forked_child_is_told_that_the_thread_is_not_its_own(thread, descriptor):
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (thread.close, thread.take, lambda: thread.submit([descriptor])):
            try:
                call()
            except RuntimeError as error:
                refused += "belongs to process" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    thread.submit([descriptor])
    assert outcome(thread) == 0
