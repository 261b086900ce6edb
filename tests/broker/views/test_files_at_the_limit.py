"""A node at its limit of open files keeps running: views wait, and idle files are closed to make room."""

from __future__ import annotations

from random import Random

import pytest
from broker_in_memory import content

from dledger.errors import BusyError
from dledger.store.open_files import OpenFiles as OpenSegments
from dledger.testing.disk import SimDisk
from dledger_broker.testing import BrokerInMemory, Message
from dledger_broker.views.stamps import are_whole
from dledger_broker.views.unitfiles import FileLayout, QueueFileWriter, UnitBatch, queue_directory
from dledger_broker.views.unitreader import QueueFileReader
from dledger_broker.views.units import UNIT, UNIT_BYTES

LAYOUT = FileLayout(16)


def units(first: int, count: int) -> bytes:
    return b"".join(UNIT.pack(100 * (first + number), 100, 0) for number in range(count))


class IdleSegment:
    """A segment whose file nobody uses."""

    def __init__(self, disk: SimDisk, name: str) -> None:
        self._file = disk.open(name, create=True)
        self.is_open = True

    def close_idle(self) -> bool:
        self._file.close()
        was_open, self.is_open = self.is_open, False
        return was_open


def test_at_the_limit_queues_and_segments_take_file_descriptors_from_each_other():
    disk = SimDisk()
    segments = OpenSegments(8)
    disk.spare.register("segments", segments.spare_one)
    writer = QueueFileWriter(disk, LAYOUT)
    idle = IdleSegment(disk, "segment")
    segments.note_opened(idle)
    disk.max_files = disk.open_files
    writer.write([UnitBatch(queue_directory("t", 0), 0, units(0, 3))])
    assert not idle.is_open
    assert len(writer.files) == 1
    disk.open("next segment", create=True)
    assert len(writer.files) == 0
    with writer.files.working, pytest.raises(OSError, match="Too many open files"):
        disk.open("another segment", create=True)


@pytest.mark.parametrize("spared", [0, 1])
def test_a_write_or_sync_without_file_descriptors_is_busy_and_can_be_repeated(spared):
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    batches = [UnitBatch(queue_directory("t", number), 0, units(number, 3)) for number in range(3)]
    disk.max_files = spared
    if spared:
        writer.write(batches)  # one file after the other
    else:
        with pytest.raises(BusyError):
            writer.write(batches)
        disk.max_files = None
        writer.write(batches)
    disk.max_files = 0
    writer.files.forget()
    paths = writer.take_unsynced()
    with pytest.raises(BusyError):
        writer.sync([path for path in paths if not path.endswith("/")])
    disk.max_files = None
    writer.sync(paths)
    disk.crash(Random(1))
    for number in range(3):
        found = content(disk, LAYOUT.path(queue_directory("t", number), 0))[: 3 * UNIT_BYTES]
        assert are_whole(found, 0, 0)


def test_a_reader_at_the_descriptor_limit_closes_files_for_its_next_attempt():
    broker = BrokerInMemory()
    disk, env = broker.disk, broker.env
    writer = QueueFileWriter(disk, LAYOUT)
    writer.write([UnitBatch(queue_directory("t", number), 0, units(0, 3)) for number in range(3)])
    writer.close()
    reader = QueueFileReader(disk, env, LAYOUT)
    found: list[object] = []
    for number in (0, 1):
        reader.read(queue_directory("t", number), 0, 0, 3, found.append)
        env.advance(0.1)
    disk.max_files = disk.open_files
    for _ in range(2):
        reader.read(queue_directory("t", 2), 0, 0, 3, found.append)
        env.advance(0.1)
    assert [type(one) for one in found] == [bytes, bytes, BusyError, bytes]


def test_messages_are_stored_and_read_at_the_descriptor_limit_and_views_follow_later():
    broker = BrokerInMemory()
    broker.create_topic("orders", queues=4)
    broker.flush_views()
    broker.disk.max_files = broker.disk.open_files
    for queue_id in range(4):
        broker.send("orders", queue_id, Message(b"a"))
    done: list[bool] = []
    broker.machine.checkpointer.request(lambda *, saved: done.append(saved))
    broker.env.advance(1.0)
    assert broker.bodies("orders") == [b"a"]
    assert done == []
    broker.disk.max_files = None
    broker.env.advance(1.0)
    assert done == [True]
    assert broker.restart().bodies("orders") == [b"a"]
