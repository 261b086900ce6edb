"""The native sync thread: it syncs what it is given, tells by a descriptor, and says what failed."""

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
    """Wait until the thread tells, and take what it tells of."""
    poll = select.poll()
    poll.register(thread.fileno(), select.POLLIN)
    assert poll.poll(WAIT_MS), "the thread has not told"
    return thread.take()


def is_readable(thread) -> bool:
    poll = select.poll()
    poll.register(thread.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_an_outcome_is_told_once(thread, descriptor):
    assert thread.take() is None
    for _ in range(100):
        os.pwrite(descriptor, b"bytes", 0)
        thread.submit([descriptor, descriptor])
        assert outcome(thread) == 0
        assert thread.take() is None
        assert not is_readable(thread)


def test_the_first_failure_is_told(thread, descriptor):
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
def test_what_is_no_list_of_descriptors_is_refused(thread, wrong):
    with pytest.raises((TypeError, OverflowError)):
        thread.submit(wrong)


class Ticket:
    """A sync of one file, done again and again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread, descriptor: int, rounds: int) -> None:
        self.syncs = NativeSyncs(loop, thread)
        self.descriptors = [descriptor]
        self.left = rounds
        self.ended_all = loop.create_future()

    def run(self) -> None:
        raise AssertionError("the native thread does it")

    def ended(self, error: OSError | None) -> None:
        assert error is None
        self.left -= 1

    def go_on(self, result: BaseException | None = None) -> None:
        assert result is None
        if self.left:
            self.syncs.submit(self, self.descriptors, self.go_on)
        else:
            self.ended_all.set_result(None)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_is_told_of_each_sync(new_loop, descriptor):
    async def sync_often() -> None:
        ticket = Ticket(asyncio.get_running_loop(), native.SyncThread(), descriptor, 500)
        ticket.go_on()
        async with asyncio.timeout(60):
            await ticket.ended_all
        ticket.syncs.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(sync_often())
