"""Zeros written ahead of the log, by another thread, never meet an entry."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_model import LoggedModel, make_identity

from dledger.store import space
from dledger.store.disk import Buffer, OsDisk, OsFile
from dledger.testing.disk import SimDisk

SEGMENT_BYTES = 1 << 18
ENTRIES = 1500


@contextmanager
def filled_meanwhile(prepare: Callable[[], object]) -> Iterator[None]:
    """Another thread prepares space all the time."""
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
    """A lock that tells when somebody has to wait for it."""

    def __init__(self) -> None:
        self.is_awaited = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_awaited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_entries_survive_zeros_that_are_written_ahead_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(space, "FILL_STEP_BYTES", 512)
    rng = random.Random(5)
    disk = OsDisk(str(tmp_path))
    make_identity(disk, SEGMENT_BYTES)
    model = LoggedModel(disk, segment_bytes=SEGMENT_BYTES)
    with filled_meanwhile(lambda: model.log.prepare_ahead(4096)):
        for number in range(ENTRIES):
            model.append(rng.randbytes(rng.choice((10, 300, 4000))))
            if number % 100 == 99:
                model.truncate(model.log.last_index - rng.randint(0, 20))
        model.sync()
    model.check()
    model.log.close()
    model.open()
    model.check()


def test_what_comes_next_is_filled_once_the_log_grows(sim_disk: SimDisk):
    make_identity(sim_disk, SEGMENT_BYTES)
    model = LoggedModel(sim_disk, segment_bytes=SEGMENT_BYTES)
    lead = SEGMENT_BYTES // space.FILL_LEAD_SHARE
    written = sim_disk.bytes_written
    assert not model.log.prepare_ahead(1 << 20)
    assert sim_disk.bytes_written == written, "a log that does not grow pays for nothing"
    model.append(bytes(lead))
    written = sim_disk.bytes_written
    model.log.prepare_ahead(1 << 20)
    filled = sim_disk.bytes_written - written
    ahead = SEGMENT_BYTES // space.FILL_AHEAD_SHARE
    assert filled == ahead // 2, "the log had come to where filling begins, so it begins further ahead"
    model.append(bytes(lead))
    grown, written = model.log.end_position, sim_disk.bytes_written
    model.log.prepare_ahead(1 << 20)
    filled = sim_disk.bytes_written - written
    model.append(bytes(lead))
    written = sim_disk.bytes_written
    model.log.prepare_ahead(1 << 20)
    assert sim_disk.bytes_written - written == model.log.end_position - grown, "then it is kept up"
    assert filled < ahead // 2
    model.check()


def test_a_log_that_grows_by_far_more_than_is_filled_meanwhile_is_not_filled(sim_disk: SimDisk):
    make_identity(sim_disk, SEGMENT_BYTES)
    model = LoggedModel(sim_disk, segment_bytes=SEGMENT_BYTES)
    for _ in range(3):
        model.append(bytes(5000))
        written = sim_disk.bytes_written
        assert model.log.prepare_ahead(2400), "there is more to do"
        assert sim_disk.bytes_written == written
    model.append(bytes(4000))
    written = sim_disk.bytes_written
    assert model.log.prepare_ahead(2400)
    assert sim_disk.bytes_written == written + 2400
    model.check()


def test_filling_ends_where_entries_catch_up_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(space, "FILL_STEP_BYTES", 512)
    disk = OsDisk(str(tmp_path))
    make_identity(disk, SEGMENT_BYTES)
    model = LoggedModel(disk, segment_bytes=SEGMENT_BYTES)
    model.append(bytes(2000))
    lock = model.log._space._working = AnnouncingLock()  # type: ignore[assignment]
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


def test_a_log_that_was_closed_is_not_filled(sim_disk: SimDisk):
    make_identity(sim_disk, SEGMENT_BYTES)
    model = LoggedModel(sim_disk, segment_bytes=SEGMENT_BYTES)
    model.append(bytes(4000))
    model.log.close()
    written = sim_disk.bytes_written
    model.log.prepare_ahead(1 << 20)
    assert sim_disk.bytes_written == written
