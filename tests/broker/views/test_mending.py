"""Consume queues that rot, get lost or cannot be read are detected before they are used, and repaired from the log."""

import errno
import struct
from itertools import pairwise

import pytest

from dledger.environment import slept
from dledger.errors import CorruptionError
from dledger.testing.disk import SimDisk
from dledger_broker.testing import START_MS, BrokerInMemory, FakeLog, Message
from dledger_broker.views.mending import BLOCK_BYTES, FIRST_SCRUB_S, SCRUB_PAUSE_S
from dledger_broker.views.reading import ReadStatus
from dledger_broker.views.stamps import STAMP_PLACE, are_whole, stamp_in_python, state
from dledger_broker.views.units import UNIT, UNIT_BYTES
from dledger_remoting.filters.tags import TagFilter, tag_code

FIRST, SECOND = "consumequeue/orders/0/00000000000000000000", f"consumequeue/orders/0/{16 * UNIT_BYTES:020d}"
COUNT = 40
"""Messages of the queue: two full files, and half of the third one."""


@pytest.fixture
def broker() -> BrokerInMemory:
    """Return a broker whose queue is in files only, with nothing in memory, and can be read."""
    broker = BrokerInMemory(disk=SimDisk(cache_miss_share=0.0), log=FakeLog(segment_bytes=1 << 12))
    broker.create_topic("orders", 1)
    broker.create_topic("others", 1)
    for number in range(COUNT):
        broker.send("orders", 0, Message(b"%d" % number, tags="odd" if number % 2 else "even"))
        broker.send("others", 0, Message(b"x%d" % number))
    broker.checkpoint()
    broker.env.advance(1.0)
    assert broker.queue("orders").view.tail == b""
    assert broker.bodies("orders") == bodies()
    return broker


def bodies() -> list[bytes]:
    return [b"%d" % number for number in range(COUNT)]


def rot(broker: BrokerInMemory, offset: int, bit: int) -> None:
    broker.disk.flip_bit(FIRST if offset < 16 else SECOND, 8 * UNIT_BYTES * (offset % 16) + bit)


def mend(broker: BrokerInMemory) -> None:
    broker.run(broker.machine.mender.mend())


def first_kept(broker: BrokerInMemory, position: int) -> int:
    """Return the first offset of the queue that a trim of the log at this position keeps."""
    view = broker.queue("orders").view
    return broker.machine.queues.first_kept(view, 0, position, broker.machine.log.read_blocking)()


def lie(broker: BrokerInMemory, offset: int) -> None:
    """Write a unit with a valid checksum that names another place of the log."""
    file, place = broker.disk.open(FIRST if offset < 16 else SECOND), UNIT_BYTES * (offset % 16)
    at, size, code = struct.unpack(">qi4xi", file.pread(UNIT_BYTES, place))
    seed = broker.queue("orders").view.seed
    (unit,) = stamp_in_python([(UNIT.pack(at - size, size, code), state(seed, offset))])
    file.pwrite(unit, place)


def test_every_flipped_bit_of_a_unit_is_found():
    units = b"".join(UNIT.pack(48 + 100 * number, 100, tag_code("even")) for number in range(9))
    (stamped,) = stamp_in_python([(units, state(77, 5))])
    assert are_whole(stamped, 77, 5)
    assert all(are_whole(stamped[UNIT_BYTES * n :], 77, 5 + n) for n in range(9))
    for bit in range(8 * len(stamped)):
        rotten = bytearray(stamped)
        rotten[bit // 8] ^= 1 << bit % 8
        assert not are_whole(bytes(rotten), 77, 5)


@pytest.mark.parametrize("seed", [0, 5, (1 << 32) - 4, 0xDEADBEEF])
def test_stamps_detect_units_of_another_queue_or_place_and_keep_all_other_bytes(seed):
    units = b"".join(UNIT.pack(48 + 100 * number, 100, -number) for number in range(40))
    stamped = stamp_in_python([(units[:60], state(seed, 9)), (b"", 1), (units[60:], state(seed, 12))])
    whole = b"".join(stamped)
    assert are_whole(whole, seed, 9)
    assert not are_whole(whole, seed, 10)
    assert not are_whole(whole, seed + 1, 9)
    assert not are_whole(bytes(len(whole)), seed, 9)
    without = [
        whole[at : at + STAMP_PLACE] + whole[at + 16 : at + UNIT_BYTES] for at in range(0, len(whole), UNIT_BYTES)
    ]
    assert without == [
        units[at : at + STAMP_PLACE] + units[at + 16 : at + 20] for at in range(0, len(units), UNIT_BYTES)
    ]


@pytest.mark.parametrize("bit", [3, 40, 80, 100, 159])
def test_a_rotten_unit_is_neither_sent_nor_skipped_and_its_file_is_mended(broker, bit):
    queue = broker.queue("orders")
    rot(broker, 7, bit)
    odd = TagFilter.parse("odd")
    result = broker.reads.get_messages(queue, 0, 32, 1 << 20, odd)
    assert (result.status, result.next_begin) == (ReadStatus.NOT_REBUILT, 0)
    assert broker.reads.get_messages(queue, COUNT - 1, 1, 1 << 20).status is ReadStatus.NOT_REBUILT
    mend(broker)
    assert broker.bodies("orders") == bodies()
    found = broker.reads.get_messages(queue, 0, 32, 1 << 20, odd)
    assert (found.status, found.message_count) == (ReadStatus.FOUND, 8)
    assert broker.machine.mender.mended == 1


@pytest.mark.parametrize("loss", ["lost", "cut", "unreadable", "broken inode", "zeros", "all", "swapped"])
def test_a_lost_or_damaged_queue_file_is_rewritten_while_its_node_runs(broker, loss):
    disk = broker.disk
    if loss == "lost":
        disk.unlink(SECOND)
    elif loss == "cut":
        disk.open(SECOND).truncate(5 * UNIT_BYTES)
    elif loss == "unreadable":
        disk.fail(lambda name, path: name == "pread" and path == SECOND, errno.EIO)
    elif loss == "broken inode":
        disk.fail(lambda name, path: name == "pread" and path == SECOND, errno.EUCLEAN)
    elif loss == "zeros":
        disk.open(SECOND).pwrite(bytes(3 * UNIT_BYTES), UNIT_BYTES)
    elif loss == "all":
        disk.rmtree("consumequeue/orders")
    else:
        other = disk.open("consumequeue/others/0/00000000000000000000").pread(16 * UNIT_BYTES, 0)
        disk.open(SECOND).pwrite(other, 0)
    broker.env.advance(FIRST_SCRUB_S + 10 * SCRUB_PAUSE_S)
    broker.run(scrubbed(broker))
    assert broker.queue("orders").view.damaged
    broker.send("orders", 0, Message(b"meanwhile"))
    broker.flush_views()
    mend(broker)
    assert broker.bodies("orders") == [*bodies(), b"meanwhile"]
    assert broker.bodies("others") == [b"x%d" % number for number in range(COUNT)]
    broker.checkpoint()
    again = broker.restart()
    assert again.bodies("orders") == [*bodies(), b"meanwhile"]


async def scrubbed(broker: BrokerInMemory) -> None:
    for queue in broker.machine.state.topic_table.queues():
        await broker.machine.mender._scrub_view(queue.view)


def test_a_bisection_that_meets_a_rotten_unit_moves_no_first_offset(broker):
    position = max(segment.start_position for segment in broker.machine.log.segments())
    expected = first_kept(broker, position)
    assert 0 < expected < COUNT
    rot(broker, COUNT // 2, 40)  # a bit of the position, in the unit that the search looks at first
    with pytest.raises(CorruptionError):
        first_kept(broker, position)
    broker.machine.queues.found_damage(broker.queue("orders").view, 0, CorruptionError("as the trim was told"))
    mend(broker)
    assert first_kept(broker, position) == expected


def test_a_unit_that_contradicts_the_log_moves_no_first_offset_despite_a_valid_checksum(broker):
    position = broker.machine.log.segments()[2].start_position
    expected = first_kept(broker, position)
    assert 16 < expected < 32
    lie(broker, expected)
    with pytest.raises(CorruptionError, match="the log has") as raised:
        first_kept(broker, position)
    broker.machine.queues.found_damage(broker.queue("orders").view, 0, raised.value)
    mend(broker)
    assert first_kept(broker, position) == expected
    assert broker.bodies("orders") == bodies()


def test_a_queue_that_a_rotten_record_contradicts_is_mended_once_the_log_is_repaired(broker):
    queue, log = broker.queue("orders"), broker.log
    file = broker.disk.open(FIRST)
    at, _, _ = struct.unpack(">qi4xi", file.pread(UNIT_BYTES, 7 * UNIT_BYTES))
    log.data[at + 27] ^= 1  # in the record's queue offset
    with pytest.raises(CorruptionError, match="the log has"):
        broker.run(broker.machine.lookup.store_time_at(queue, 7))
    with pytest.raises(CorruptionError):
        mend(broker)
    (reported,) = broker.node.failed_reads
    assert reported <= at < reported + BLOCK_BYTES, "the log is repaired from there on"
    log.data[at + 27] ^= 1
    mend(broker)
    assert broker.bodies("orders") == bodies()


@pytest.mark.parametrize("fault", ["record", "write", "unlink"])
def test_a_queue_that_cannot_be_mended_keeps_no_other_queue_damaged(broker, fault):
    queues, log, disk = broker.machine.queues, broker.log, broker.disk
    at, _, _ = struct.unpack(">qi4xi", disk.open(FIRST).pread(UNIT_BYTES, 0))
    for topic in ("orders", "others"):
        queues.found_damage(broker.queue(topic).view, 0, CorruptionError("as the scrub was told"))
    disk.unlink(SECOND.replace("orders", "others"))
    disk.unlink(FIRST)
    if fault == "record":
        log.data[at + 27] ^= 1
    elif fault == "unlink":
        disk.open(FIRST, create=True).truncate(UNIT_BYTES)
        disk.fail(lambda name, path: (name, path) == ("unlink", FIRST), errno.EROFS)
    else:
        disk.fail(lambda name, path: (name, path) == ("pwrite", FIRST), errno.EIO, once=False)
    with pytest.raises(CorruptionError if fault == "record" else OSError):
        mend(broker)
    assert [view.topic for view in queues.damaged] == ["orders"]
    assert broker.bodies("others") == [b"x%d" % number for number in range(COUNT)]
    disk.faults.clear()
    if fault == "record":
        log.data[at + 27] ^= 1
    mend(broker)
    assert broker.bodies("orders") == bodies()


def test_a_queue_that_cannot_be_mended_has_the_log_read_ever_more_rarely_until_another_is_damaged(broker, monkeypatch):
    mender, queues, attempts = broker.machine.mender, broker.machine.queues, []

    async def fail() -> None:
        attempts.append(broker.env.now())
        raise CorruptionError("the log has no record of it")

    monkeypatch.setattr(mender, "mend", fail)

    async def watched() -> None:
        mender.start()
        queues.found_damage(broker.queue("orders").view, 0, CorruptionError("as a reader found"))
        await slept(broker.env, 200.0)
        before = len(attempts)
        queues.found_damage(broker.queue("others").view, 0, CorruptionError("as the scrub found"))
        await slept(broker.env, 1.0)
        assert len(attempts) == before + 1
        mender.abandon()

    broker.run(watched())
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses == pytest.approx([5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 5.0])


def test_a_store_time_is_not_looked_up_in_a_record_of_another_unit(broker):
    queue = broker.queue("orders")
    lie(broker, 7)
    with pytest.raises(CorruptionError, match="the log has"):
        broker.run(broker.machine.lookup.store_time_at(queue, 7))
    mend(broker)
    assert broker.run(broker.machine.lookup.store_time_at(queue, 7)) == START_MS


def test_files_of_a_version_without_stamps_are_made_anew_by_a_start(broker):
    broker.node.snapshot()
    broker.checkpoint()
    for name in ("views/stamped-0", "views/stamped-1"):
        if broker.disk.exists(name):
            broker.disk.rename(name, name.replace("stamped", "checkpoint"))
    broker.disk.open(FIRST).pwrite(UNIT.pack(48, 100, tag_code("even")), 0)
    assert broker.restart().bodies("orders") == bodies()
