"""Files of consume queues that the event loop reads from are opened and closed by workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dledger.environment import AsyncioEnvironment, called_back
from dledger.errors import CorruptionError
from dledger.invariants import known
from dledger.loop_guard import as_worker
from dledger.store.disk import OsDisk
from dledger.testing.disk import SimDisk, SimFile
from dledger_broker.testing import FakeEnvironment
from dledger_broker.views.unitfiles import FileLayout, QueueFileWriter, UnitBatch
from dledger_broker.views.unitreader import QueueFileReader, close_all
from dledger_broker.views.units import UNIT_BYTES

LAYOUT = FileLayout(10)
FIRST, SECOND = "consumequeue/orders/0", "consumequeue/orders/1"
UNITS = bytes(range(200)) * 2


class Files(SimDisk):
    """A disk that knows which of its files are open."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[SimFile] = []

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> SimFile:
        file = super().open(path, create=create, write_through=write_through)
        self.all.append(file)
        return file

    @property
    def open_files(self) -> int:
        return sum(file._open for file in self.all)


@pytest.fixture
def disk() -> Files:
    disk = Files()
    with as_worker():
        writer = QueueFileWriter(disk, LAYOUT)
        writer.write([UnitBatch(FIRST, 0, UNITS), UnitBatch(SECOND, 0, UNITS)])
        writer.close()
    return disk


def read(reader: QueueFileReader, env: FakeEnvironment, directory: str, offset: int, count: int) -> object:
    results: list[object] = []
    reader.read(directory, offset, count, results.append)
    env.run_ready()
    (result,) = results
    return result


def test_a_file_that_a_worker_had_to_open_is_read_without_one_from_then_on(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    assert reader.read_nowait(FIRST, 3, 5) is None
    assert read(reader, env, FIRST, 3, 5) == UNITS[3 * UNIT_BYTES : 8 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 3, 5) == UNITS[3 * UNIT_BYTES : 8 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 8, 5) == UNITS[8 * UNIT_BYTES : 10 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 10, 5) is None, "that is in the next file"
    assert read(reader, env, FIRST, 8, 5) == UNITS[8 * UNIT_BYTES : 13 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 10, 5) == UNITS[10 * UNIT_BYTES : 15 * UNIT_BYTES]
    assert disk.open_files == 2


def test_the_file_that_was_not_read_for_longest_is_closed_when_there_are_too_many(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT, limit=2)
    read(reader, env, FIRST, 0, 1)
    read(reader, env, FIRST, 10, 1)
    assert reader.read_nowait(FIRST, 0, 1) is not None
    read(reader, env, SECOND, 0, 1)
    assert disk.open_files == 2
    assert reader.read_nowait(FIRST, 0, 1) is not None
    assert reader.read_nowait(SECOND, 0, 1) is not None
    assert reader.read_nowait(FIRST, 10, 1) is None


@pytest.mark.parametrize(
    "forget",
    [lambda reader: reader.forget("consumequeue/orders/"), lambda reader: reader.forget_in({FIRST})],
    ids=["the topic", "the queue"],
)
def test_files_that_lost_their_names_are_read_no_more_not_even_one_that_is_just_being_opened(disk: Files, forget):
    """Another queue may have the name by then."""
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    read(reader, env, FIRST, 0, 1)
    results: list[object] = []
    reader.read(FIRST, 10, 1, results.append)
    forget(reader)
    env.run_ready()
    assert results == [UNITS[200:220]]
    assert (reader.read_nowait(FIRST, 0, 1), reader.read_nowait(FIRST, 10, 1)) == (None, None)
    assert disk.open_files == 0


def test_a_trim_of_one_queue_leaves_the_files_of_others_open(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    read(reader, env, FIRST, 0, 1)
    read(reader, env, SECOND, 0, 1)
    reader.forget_in({FIRST})
    assert reader.read_nowait(SECOND, 0, 1) is not None
    assert reader.read_nowait(FIRST, 0, 1) is None


def test_two_reads_of_one_file_leave_it_open_once(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    results: list[object] = []
    for _ in range(2):
        reader.read(FIRST, 0, 1, results.append)
    env.run_ready()
    assert (len(results), disk.open_files) == (2, 1)


def test_nothing_stays_open_behind_the_end(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    read(reader, env, FIRST, 0, 1)
    results: list[object] = []
    reader.read(SECOND, 0, 1, results.append)
    close_all(reader.close())
    env.run_ready()
    assert (len(results), disk.open_files) == (1, 0)


def test_a_file_that_lacks_units_is_damage(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    assert isinstance(read(reader, env, FIRST, 15, 10), CorruptionError)
    reader.forget("")
    env.run_ready()
    assert disk.open_files == 0


async def test_the_event_loop_touches_no_disk(disk: Files):
    """The simulated disk refuses that, whatever happens to the files."""
    env = AsyncioEnvironment(asyncio.get_running_loop())
    reader = QueueFileReader(disk, env, LAYOUT, limit=1)
    try:
        for directory in (FIRST, SECOND, FIRST):
            assert reader.read_nowait(directory, 0, 1) is None
            await called_back(lambda done, directory=directory: reader.read(directory, 0, 1, done))
            assert reader.read_nowait(directory, 0, 1) == UNITS[:UNIT_BYTES]
        reader.forget(FIRST)
        assert reader.read_nowait(FIRST, 0, 1) is None
    finally:
        env.close()
    assert disk.open_files == 0


@pytest.mark.parametrize(("offset", "count", "expected"), [(3, 5, 5), (8, 5, 2), (10, 5, 5)])
def test_a_place_is_where_the_units_are_read_from(tmp_path: Path, offset: int, count: int, expected: int):
    disk, env = OsDisk(tmp_path), FakeEnvironment()
    with as_worker():
        writer = QueueFileWriter(disk, LAYOUT)
        writer.write([UnitBatch(FIRST, 0, UNITS)])
        writer.close()
    reader = QueueFileReader(disk, env, LAYOUT)
    assert reader.place(FIRST, offset, count) is None, "it is not open"
    read(reader, env, FIRST, offset, count)
    held, descriptor, at, units = known(reader.place(FIRST, offset, count), "it is open")
    assert (held, units) == (None, expected)
    assert os.pread(descriptor, units * UNIT_BYTES, at) == UNITS[offset * UNIT_BYTES :][: expected * UNIT_BYTES]
    with as_worker():
        close_all(reader.close())


def test_a_file_without_a_descriptor_has_no_place(disk: Files):
    env = FakeEnvironment()
    reader = QueueFileReader(disk, env, LAYOUT)
    read(reader, env, FIRST, 0, 1)
    assert reader.place(FIRST, 0, 1) is None
