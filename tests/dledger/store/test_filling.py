"""Zeros that another thread writes ahead of the log never overwrite an entry."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_model import LoggedModel, synced_log

from dledger.store import space
from dledger.store.disk import Buffer, OsDisk, OsFile
from dledger.testing.disk import SimDisk

SEGMENT_BYTES = 1 << 18
ENTRIES = 1500


@contextmanager
def filled_meanwhile(prepare: Callable[[], object]) -> Iterator[None]:
    """Prepare space in another thread all the time."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.is_set():
                prepare()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not errors


class AnnouncingLock:
    """Lock that reports when a thread has to wait for it."""

    def __init__(self) -> None:
        self.is_awaited = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_awaited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def model(sim_disk: SimDisk) -> LoggedModel:
    return synced_log(sim_disk, 0, segment_bytes=SEGMENT_BYTES)


@pytest.fixture
def real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoggedModel:
    """Return a log on a real disk that is filled in small steps."""
    monkeypatch.setattr(space, "FILL_STEP_BYTES", 512)
    return synced_log(OsDisk(str(tmp_path)), 0, segment_bytes=SEGMENT_BYTES)


def test_entries_survive_a_concurrent_fill_with_zeros(real_model: LoggedModel):
    model, rng = real_model, random.Random(5)
    with filled_meanwhile(lambda: model.log.prepare_ahead(4096)):
        for number in range(ENTRIES):
            model.append(rng.randbytes(rng.choice((10, 300, 4000))))
            if number % 100 == 99:
                model.truncate(model.log.last_index - rng.randint(0, 20))
        model.sync()
    model.check()
    model.reopen()
    model.check()


def filled(model: LoggedModel, budget: int = 1 << 20) -> tuple[int, bool]:
    """Prepare space, and return the number of bytes that were written, and whether there is more to do."""
    written = model.sim.bytes_written
    more = model.log.prepare_ahead(budget)
    return model.sim.bytes_written - written, more


def test_space_ahead_is_filled_once_the_log_grows(model: LoggedModel):
    lead = SEGMENT_BYTES // space.FILL_LEAD_SHARE
    assert filled(model) == (0, False), "a log that does not grow pays for nothing"
    model.append(bytes(lead))
    ahead = SEGMENT_BYTES // space.FILL_AHEAD_SHARE
    assert filled(model)[0] == ahead // 2, "the log had come to where filling begins, so it begins further ahead"
    model.append(bytes(lead))
    grown = model.log.end_position
    assert filled(model)[0] < ahead // 2
    model.append(bytes(lead))
    assert filled(model)[0] == model.log.end_position - grown, "then it is kept up"
    model.check()


def test_a_log_that_grows_by_far_more_than_is_filled_meanwhile_is_not_filled(model: LoggedModel):
    for _ in range(3):
        model.append(bytes(5000))
        assert filled(model, 2400) == (0, True)
    model.append(bytes(4000))
    assert filled(model, 2400) == (2400, True)
    model.check()


def test_filling_ends_when_entries_catch_up(real_model: LoggedModel, monkeypatch: pytest.MonkeyPatch):
    model = real_model
    model.append(bytes(2000))
    lock = model.log._space._disk_lock = AnnouncingLock()  # type: ignore[assignment]
    write, steps, entries = OsFile.pwrite, [], []

    def write_while_an_entry_waits(self: OsFile, data: Buffer, offset: int) -> None:
        if isinstance(data, memoryview) and not any(data):
            steps.append(len(data))
            if len(steps) == 2:
                entry = threading.Thread(target=model.append, args=(bytes(12_000),))
                entry.start()
                entries.append(entry)
                assert lock.is_awaited.wait(30)
        write(self, data, offset)

    monkeypatch.setattr(OsFile, "pwrite", write_while_an_entry_waits)
    assert model.log.prepare_ahead(1 << 20), "there is more to do"
    entries[0].join()
    assert steps == [512, 512]
    model.sync()
    model.check()


def test_a_log_that_was_closed_is_not_filled(model: LoggedModel):
    model.append(bytes(4000))
    model.log.close()
    assert filled(model)[0] == 0
