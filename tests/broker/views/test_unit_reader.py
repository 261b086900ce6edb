"""Consume queue files that the event loop reads are opened and closed by workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dledger.environment import AsyncioEnvironment, called_back
from dledger.errors import CorruptionError
from dledger.store.disk import Disk, OsDisk
from dledger.testing.disk import SimDisk, SimFile
from dledger_base.invariants import known
from dledger_base.loop_guard import as_worker
from dledger_broker.testing import FakeEnvironment
from dledger_broker.views.stamps import stamp_in_python
from dledger_broker.views.unitfiles import FileLayout, QueueFileWriter, UnitBatch
from dledger_broker.views.unitreader import QueueFileReader, close_all
from dledger_broker.views.units import UNIT_BYTES

LAYOUT = FileLayout(10)
FIRST, SECOND = "consumequeue/orders/0", "consumequeue/orders/1"
(UNITS,) = stamp_in_python([(bytes(range(200)) * 2, 0)])


class Files(SimDisk):
    """Disk that knows which of its files are open."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[SimFile] = []

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> SimFile:
        file = super().open(path, create=create, write_through=write_through)
        self.all.append(file)
        return file

    @property
    def still_open(self) -> int:
        return sum(file._open for file in self.all)


def write(disk: Disk, *directories: str) -> None:
    with as_worker():
        writer = QueueFileWriter(disk, LAYOUT)
        writer.write([UnitBatch(directory, 0, UNITS) for directory in directories])
        writer.close()


@pytest.fixture
def disk() -> Files:
    disk = Files()
    write(disk, FIRST, SECOND)
    return disk


class Reader(QueueFileReader):
    """Reader on an environment of a test."""

    def __init__(self, disk: Disk, limit: int | None = None) -> None:
        self.env = FakeEnvironment()
        super().__init__(disk, self.env, LAYOUT, limit=limit)


@pytest.fixture
def reader(disk: Files) -> Reader:
    return Reader(disk)


def read(reader: Reader, directory: str, offset: int, count: int) -> object:
    results: list[object] = []
    reader.read(directory, 0, offset, count, results.append)
    reader.env.run_ready()
    (result,) = results
    return result


def test_a_file_opened_by_a_worker_is_read_without_a_worker_afterwards(reader: Reader, disk: Files):
    assert reader.read_nowait(FIRST, 0, 3, 5) is None
    assert read(reader, FIRST, 3, 5) == UNITS[3 * UNIT_BYTES : 8 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 0, 3, 5) == UNITS[3 * UNIT_BYTES : 8 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 0, 8, 5) == UNITS[8 * UNIT_BYTES : 10 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 0, 10, 5) is None, "that is in the next file"
    assert read(reader, FIRST, 8, 5) == UNITS[8 * UNIT_BYTES : 13 * UNIT_BYTES]
    assert reader.read_nowait(FIRST, 0, 10, 5) == UNITS[10 * UNIT_BYTES : 15 * UNIT_BYTES]
    assert disk.still_open == 2


def test_the_least_recently_read_file_is_closed_at_the_limit(disk: Files):
    reader = Reader(disk, limit=2)
    read(reader, FIRST, 0, 1)
    read(reader, FIRST, 10, 1)
    assert reader.read_nowait(FIRST, 0, 0, 1) is not None
    read(reader, SECOND, 0, 1)
    assert disk.still_open == 2
    assert reader.read_nowait(FIRST, 0, 0, 1) is not None
    assert reader.read_nowait(SECOND, 0, 0, 1) is not None
    assert reader.read_nowait(FIRST, 0, 10, 1) is None


@pytest.mark.parametrize(
    "forget",
    [lambda reader: reader.forget("consumequeue/orders/"), lambda reader: reader.forget_in({FIRST})],
    ids=["the topic", "the queue"],
)
def test_a_file_that_lost_its_name_is_not_read_even_if_being_opened(reader: Reader, disk: Files, forget):
    """Another queue may have the name by then."""
    read(reader, FIRST, 0, 1)
    results: list[object] = []
    reader.read(FIRST, 0, 10, 1, results.append)
    forget(reader)
    reader.env.run_ready()
    assert results == [UNITS[200:220]]
    assert (reader.read_nowait(FIRST, 0, 0, 1), reader.read_nowait(FIRST, 0, 10, 1)) == (None, None)
    assert disk.still_open == 0


def test_a_trim_of_one_queue_leaves_the_files_of_other_queues_open_and_a_close_none(reader: Reader, disk: Files):
    results: list[object] = []
    for directory in (FIRST, FIRST, SECOND):
        reader.read(directory, 0, 0, 1, results.append)
    reader.env.run_ready()
    assert (len(results), disk.still_open) == (3, 2)
    assert reader.place(FIRST, 0, 0, 1) is None, "these files have no descriptor"
    reader.forget_in({FIRST})
    assert reader.read_nowait(SECOND, 0, 0, 1) is not None
    assert reader.read_nowait(FIRST, 0, 0, 1) is None
    reader.read(FIRST, 0, 0, 1, results.append)
    close_all(reader.close())
    reader.env.run_ready()
    assert (len(results), disk.still_open) == (4, 0)


def test_a_queue_file_that_lacks_units_is_reported_as_damage(reader: Reader, disk: Files):
    assert isinstance(read(reader, FIRST, 15, 10), CorruptionError)
    reader.forget("")
    reader.env.run_ready()
    assert disk.still_open == 0


async def test_the_event_loop_touches_no_disk(disk: Files):
    """The simulated disk refuses that."""
    env = AsyncioEnvironment(asyncio.get_running_loop())
    reader = QueueFileReader(disk, env, LAYOUT, limit=1)
    try:
        for directory in (FIRST, SECOND, FIRST):
            assert reader.read_nowait(directory, 0, 0, 1) is None
            await called_back(lambda done, directory=directory: reader.read(directory, 0, 0, 1, done))
            assert reader.read_nowait(directory, 0, 0, 1) == UNITS[:UNIT_BYTES]
        reader.forget(FIRST)
        assert reader.read_nowait(FIRST, 0, 0, 1) is None
    finally:
        env.close()
    assert disk.still_open == 0


@pytest.mark.parametrize(("offset", "count", "expected"), [(3, 5, 5), (8, 5, 2), (10, 5, 5)])
def test_a_place_names_the_descriptor_and_position_of_the_units(tmp_path: Path, offset: int, count: int, expected: int):
    disk = OsDisk(str(tmp_path))
    write(disk, FIRST)
    reader = Reader(disk)
    assert reader.place(FIRST, 0, offset, count) is None, "it is not open"
    read(reader, FIRST, offset, count)
    held, descriptor, at, units, *states = known(reader.place(FIRST, 0, offset, count), "it is open")
    assert (held, units, states) == (None, expected, [offset, offset + expected])
    assert os.pread(descriptor, units * UNIT_BYTES, at) == UNITS[offset * UNIT_BYTES :][: expected * UNIT_BYTES]
    with as_worker():
        close_all(reader.close())
