import asyncio
import errno
import random
import struct
from contextlib import suppress
from functools import partial

import msgspec
import numpy as np
import pytest
from broker_in_memory import content
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import NotLeaderError
from dledger.testing.disk import SimDisk
from dledger_base.checksum import crc32
from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.testing import SMALL, START_MS, BrokerInMemory, Message
from dledger_broker.views import keysearch
from dledger_broker.views.checkpoint import read_checked, write_checked
from dledger_broker.views.keyfile import (
    ActiveIndexFile,
    IndexDamageError,
    IndexHeader,
    IndexLayout,
    SealedIndexFile,
    as_keys,
    key_hash,
    key_hashes,
)
from dledger_broker.views.keyindex import CHECKPOINT, IndexCheckpoint, KeyIndex
from dledger_broker.views.keyscan import record_keys
from dledger_broker.views.keysearch import FAR_BEHIND_BYTES, core_share
from dledger_remoting.filters.tags import java_hash
from dledger_remoting.record import RecordRef

SMALL_LAYOUT = IndexLayout(slots=4, entries=6)
FOREVER = (0, 1 << 60)


def test_layout_and_key_hashes_are_rocketmqs():
    """The last key hashes to Java's smallest integer, which has no absolute value."""
    assert IndexLayout().file_bytes == 420_000_040
    assert IndexLayout().entry_at(1) == 40 + 4 * 5_000_000 + 20
    for topic, key, expected in (("T1", b"k0", 79072523), ("T1", b"UNIQ", 1321340953), ("T", b"0jdpfbq", 0)):
        assert key_hash(topic, key) == expected
        assert key_hashes(topic, np.frombuffer(key, np.uint8).reshape(1, -1)).tolist() == [expected]


@given(st.text(max_size=20), st.text(max_size=300))
def test_a_hash_is_that_of_java(topic, key):
    code = java_hash(f"{topic}#{key}")
    assert key_hash(topic, key.encode()) == (0 if code == -(1 << 31) else abs(code))


@given(st.text(max_size=20), st.integers(1, 300), st.data())
def test_hashing_many_keys_at_once_equals_hashing_each_key(topic, length, data):
    keys = data.draw(st.lists(st.text(st.characters(max_codepoint=127), min_size=length, max_size=length), min_size=1))
    rows = np.frombuffer("".join(keys).encode(), np.uint8).reshape(-1, length)
    assert key_hashes(topic, rows).tolist() == [key_hash(topic, key.encode()) for key in keys]


def test_a_key_index_file_has_the_expected_bytes():
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", SMALL_LAYOUT, IndexHeader(), 1)
    file.add(as_keys([(9, 1000, 5_000), (13, 1100, 7_999)]))
    file.add(as_keys([(2, 1200, 8_000)]))
    file.write_slots()
    file.sync_entries()
    assert content(disk, "f") == b"".join(
        (
            struct.pack(">qqqqii", 5_000, 8_000, 1000, 1200, 2, 4),
            struct.pack(">4i", 0, 2, 3, 0),
            bytes(20),
            struct.pack(">iqii", 9, 1000, 0, 0),
            struct.pack(">iqii", 13, 1100, 2, 1),
            struct.pack(">iqii", 2, 1200, 3, 0),
            bytes(40),
            struct.pack(">I", crc32(struct.pack(">4i", 0, 2, 3, 0))),
            bytes(4),  # the checksum of a group that is not full yet
        )
    )
    file.add(as_keys([(1, 1300, 9_000), (1, 1400, 9_000)]))
    file.sync_entries()
    data = content(disk, "f")
    assert data[-4:] == struct.pack(">I", crc32(data[56:176]))


def test_entries_of_a_hash_are_found_newest_first_and_by_time():
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", SMALL_LAYOUT, IndexHeader(), 1)
    file.add(as_keys([(5, 100 * number, 10_000 * number) for number in (1, 2, 3)] + [(9, 400, 40_000)]))
    assert list(file.positions(5, *FOREVER)) == [300, 200, 100]
    assert list(file.positions(9, *FOREVER)) == [400]
    assert list(file.positions(1, *FOREVER)) == []
    assert list(file.positions(5, 20_000, 25_000)) == [200]
    file.add(as_keys([(5, 500, 50_000)]))
    assert file.full
    file.write_slots()
    file.sync_entries()
    assert list(SealedIndexFile(disk, "f", SMALL_LAYOUT).positions(5, *FOREVER)) == [500, 300, 200, 100]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.data())
def test_slots_are_recovered_from_the_entries_that_they_lack(codes, data):
    layout = IndexLayout(slots=7, entries=40)
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", layout, IndexHeader(), 1)
    split = data.draw(st.integers(0, len(codes)))
    keys = [(code, 10 * place, 1000 * place) for place, code in enumerate(codes)]
    file.add(as_keys(keys[:split]))
    file.write_slots()
    slots_entries = file.header.next_entry
    file.add(as_keys(keys[split:]))
    again = ActiveIndexFile(disk, "f", layout, file.header, slots_entries, file.last_sum)
    for code in set(codes):
        assert list(again.positions(code, *FOREVER)) == list(file.positions(code, *FOREVER))


def test_the_keys_of_a_record_are_its_unique_key_and_its_distinct_keys():
    def keys_of(properties: bytes, sys_flag: int = 0) -> list[bytes]:
        return record_keys(RecordRef(0, 0, b"T", 0, 0, 0, 0, sys_flag, properties))

    assert keys_of(b"UNIQ_KEY\x01U1\x02KEYS\x01a  b U1\x02TAGS\x01t\x02") == [b"U1", b"a", b"b"]
    assert keys_of(b"KEYS\x01a") == [b"a"]
    assert keys_of(b"TAGS\x01t\x02") == []
    assert keys_of(b"UNIQ_KEY\x01U1\x02", sys_flag=0xC) == []


def bodies_of(
    broker: BrokerInMemory, key: str, count: int = 32, begin: int = 0, end: int = 1 << 60, size: int = 1 << 20, **kind
) -> list:
    queries = KeyQueries(broker.machine.keys, broker.machine.lookup)
    result = broker.run(queries.query("orders", key, count, begin, end, max_bytes=size, **kind))
    return [record[88:90] for record in result.records]


@pytest.mark.parametrize("indexed", [False, True])
def test_messages_are_found_by_key_before_and_after_they_are_indexed(broker, indexed):
    broker.create_topic("others")
    broker.send("others", 0, Message(b"zz", keys="red"))
    for number in range(10, 70):
        keys = "red green" if number % 10 == 0 else "blue"
        broker.send("orders", number % 4, Message(b"%d" % number, keys=keys, unique_key=f"U{number}"), at_ms=number)
    if indexed:
        broker.run(broker.machine.keys.catch_up())
        assert broker.machine.keys.lag_bytes == 0
    assert bodies_of(broker, "green") == [b"60", b"50", b"40", b"30", b"20", b"10"]
    assert bodies_of(broker, "red", count=2) == [b"60", b"50"]
    assert bodies_of(broker, "U33") == bodies_of(broker, "U33", unique_only=True) == [b"33"]
    assert bodies_of(broker, "red", unique_only=True) == []
    assert bodies_of(broker, "absent") == []


def test_a_query_joins_indexed_and_unindexed_messages_up_to_the_size_limit(broker):
    """It returns at least one message, however large."""
    for number in range(10, 13):
        if number == 12:
            broker.run(broker.machine.keys.catch_up())
        broker.send("orders", 0, Message(b"%d" % number + bytes(1000), keys="large"))
    assert bodies_of(broker, "large") == [b"12", b"11", b"10"]
    assert bodies_of(broker, "large", size=2500) == [b"12", b"11"]
    assert bodies_of(broker, "large", size=1) == [b"12"]


async def pause(broker: BrokerInMemory, seconds: float) -> None:
    future = asyncio.get_running_loop().create_future()
    broker.env.call_later(seconds, lambda: future.set_result(None))
    await broker.env.finish(future)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_range_holds_though_the_next_leaders_clock_is_behind(
    broker: BrokerInMemory, *, indexed: bool, sealed: bool
):
    for number, at_ms in enumerate([START_MS, START_MS - 60_000, START_MS - 30_000], 10):
        broker.send("orders", 0, Message(b"%d" % number, keys="red"), at_ms=at_ms)
    for _ in range(SMALL.index_entries if sealed else 0):
        broker.send("orders", 0, Message(b"xx", keys="blue"), at_ms=START_MS - 30_000)
    if indexed:
        broker.run(broker.machine.keys.catch_up())
    assert bodies_of(broker, "red", begin=START_MS - 1000) == [b"10"]
    assert bodies_of(broker, "red", begin=START_MS - 61_000, end=START_MS - 59_000) == [b"11"]
    assert bodies_of(broker, "red", end=START_MS - 20_000) == [b"12", b"11"]


def send_numbered(broker: BrokerInMemory, *numbers: int, keys: str = "k{0}") -> None:
    """Send messages whose bodies are these numbers, each a millisecond later than the one with the number before."""
    for number in numbers:
        broker.send("orders", 0, Message(b"%d" % number, keys=keys.format(number)), at_ms=START_MS + number)


def filled() -> BrokerInMemory:
    """Return a broker with messages 10 to 98, of which every third one has the same key."""
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10, 99):
        send_numbered(broker, number, keys=f"k{number % 3}")
    broker.run(broker.machine.keys.catch_up())
    return broker


def reopened(broker: BrokerInMemory) -> BrokerInMemory:
    """Restart a broker, and open its key index."""
    again = broker.restart()
    again.run(again.machine.keys.load())
    return again


def test_files_roll_when_they_are_full_and_are_named_by_time():
    broker = filled()
    broker.node.durable_limit = 0
    broker.run(broker.machine.keys.save())
    assert not broker.disk.exists(CHECKPOINT), "it would be ahead of the durable log"
    broker.node.durable_limit = None
    broker.run(broker.machine.keys.save())
    assert sorted(broker.disk.listdir("keyindex")) == ["20231114221320010", "20231114221320059", "checkpoint"]
    header = struct.unpack(">qqqqii", content(broker.disk, "keyindex/20231114221320010")[:40])
    assert (header[0], header[5]) == (START_MS + 10, SMALL.index_entries)


def test_a_crash_behind_a_full_file_costs_no_key(broker):
    """A crash after a file became full loses no key.

    1. A clean stop saves the slots.
    2. More keys fill the file, and its slots are written.
    3. The node crashes before a checkpoint.
    """
    send_numbered(broker, *range(10, 13))
    disk = SimDisk()
    index = KeyIndex(disk, SMALL_LAYOUT)
    index.load("one")
    saved = index.add_block(bytes(broker.log.data), 0)
    index.save()
    index.save_slots()
    index.close()
    send_numbered(broker, *range(13, 30))
    data = bytes(broker.log.data)
    for _ in range(2):
        index = KeyIndex(disk, SMALL_LAYOUT)
        assert index.load("one") == saved
        index.add_block(data[saved:], saved)
        assert all(len(index.positions("orders", b"k%d" % number, *FOREVER, 8)) == 1 for number in range(10, 30))


@pytest.mark.parametrize("clean", [False, True])
def test_the_key_index_continues_at_its_saved_position(clean):
    broker = filled()
    before = bodies_of(broker, "k1", count=100)
    broker.run(broker.machine.keys.close() if clean else broker.machine.keys.save())
    again = reopened(broker)
    assert again.machine.keys.position == broker.machine.keys.position
    again.send("orders", 0, Message(b"99", keys="k1"))
    again.run(again.machine.keys.catch_up())
    assert bodies_of(again, "k1", count=100) == [b"99", *before]


def test_a_closed_key_index_sends_queries_to_other_nodes():
    broker = filled()
    broker.run(broker.machine.keys.close())
    with pytest.raises(NotLeaderError, match="stopping"):
        bodies_of(broker, "k1")


@pytest.mark.parametrize(
    "fault",
    [
        *("checkpoint", "20231114221320010", "20231114221320059", "all", "rot", "incarnation", "no checksums"),
        *("inode of 20231114221320010", "inode of 20231114221320059"),
    ],
)
def test_an_index_that_is_not_whole_or_not_of_this_node_and_version_is_built_again(fault):
    broker = filled()
    before = bodies_of(broker, "k1", count=100)
    broker.run(broker.machine.keys.save())
    again = broker.restart()
    if fault == "all":
        broker.disk.rmtree("keyindex")
    elif fault == "rot":
        broker.disk.flip_bit(CHECKPOINT, 77)
    elif fault == "incarnation":
        again.machine.keys.incarnation = "another"
    elif fault == "no checksums":
        checkpoint = read_checked(broker.disk, CHECKPOINT, IndexCheckpoint)
        write_checked(broker.disk, CHECKPOINT, msgspec.structs.replace(checkpoint, format=0))
    elif fault.startswith("inode of "):
        path = fault.replace("inode of ", "keyindex/")
        broker.disk.fail(lambda operation, opened: (operation, opened) == ("open", path), errno.EUCLEAN)
    else:
        broker.disk.unlink(f"keyindex/{fault}")
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == 0
    assert bodies_of(again, "k1", count=100) == before
    again.run(again.machine.keys.catch_up())
    assert bodies_of(again, "k1", count=100) == before


def test_concurrent_queries_open_the_key_index_once(monkeypatch):
    broker = filled()
    broker.run(broker.machine.keys.save())
    again = broker.restart()
    loads = []
    load = KeyIndex.load
    monkeypatch.setattr(KeyIndex, "load", lambda index, incarnation: (loads.append(1), load(index, incarnation))[1])

    async def ask():
        return await asyncio.gather(*(again.machine.keys.candidates("orders", b"k1", 8, *FOREVER) for _ in range(5)))

    found = again.run(ask())
    assert len(loads) == 1
    assert found == [found[0]] * 5


@pytest.mark.parametrize("cold", [False, True])
def test_a_key_search_survives_the_replacement_of_the_log_by_a_snapshot(broker, monkeypatch, cold):
    broker.send("orders", 0, Message(b"old", keys="k1"))
    broker.node.log.roll(START_MS)
    broker.node.cold = cold
    reader = broker.machine.keys._reader
    read = reader.read

    async def replaced(position, size):
        if cold:
            broker.node.log.first_position = broker.log.end
        data = await read(position, size)
        broker.node.log.first_position = broker.log.end
        return data

    monkeypatch.setattr(keysearch, "SEARCH_BLOCK_BYTES", 64)
    monkeypatch.setattr(reader, "read", replaced)
    assert broker.run(broker.machine.keys.candidates("orders", b"k1", 8, *FOREVER)) == []


def test_a_trim_removes_files_of_the_key_index_and_keeps_its_saved_position():
    broker = filled()
    keys = broker.machine.keys
    broker.run(keys.save())
    keys.trimmed(broker.log.end)
    broker.env.run_ready()
    assert sorted(broker.disk.listdir("keyindex")) == ["20231114221320059", "checkpoint"]
    assert reopened(broker).machine.keys.position == keys.position > 0


def test_the_indexer_runs_behind_the_log_and_stops_cleanly(broker):
    for number in range(20):
        broker.send("orders", 0, Message(b"%02d" % number, keys="k"))

    async def life() -> None:
        broker.machine.start()
        while broker.machine.keys.lag_bytes:
            await pause(broker, 0.1)
        await broker.env.finish(broker.machine.close())

    broker.run(life())
    assert broker.machine.keys.position == broker.machine.applied_position
    assert broker.disk.exists("keyindex/checkpoint")
    assert broker.disk.exists("views/stamped-0")


@pytest.fixture
def failing() -> ActiveIndexFile:
    """Return a file with one entry, whose next write fails."""
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", SMALL_LAYOUT, IndexHeader(), 1)
    file.add(as_keys([(5, 100, 1000)]))
    disk.fail(lambda operation, path: operation == "pwrite" and path.startswith("f"), errno.ENOSPC)
    return file


def test_a_failed_write_of_entries_leaves_no_gap_in_a_chain(failing):
    more = as_keys([(5, 200, 2000), (5, 300, 3000)])
    with pytest.raises(OSError, match="No space"):
        failing.add(more)
    assert list(failing.positions(5, *FOREVER)) == [100]
    failing.add(more)
    assert list(failing.positions(5, *FOREVER)) == [300, 200, 100]


def test_a_key_index_file_can_be_closed_while_its_last_write_error_is_held(failing):
    """The error's traceback keeps local variables alive, and some of them refer to the file's memory."""
    with pytest.raises(OSError, match="No space") as kept:
        failing.write_slots()
    failing.close()
    assert kept.value.errno == errno.ENOSPC


def test_the_core_share_of_the_indexer_grows_with_its_lag_up_to_a_limit():
    shares = [core_share(0.04, lag) for lag in range(0, 2 * FAR_BEHIND_BYTES, FAR_BEHIND_BYTES // 4)]
    assert shares == pytest.approx([0.04, 0.0925, 0.145, 0.1975, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("operation", ["pwrite", "datasync", "sync_dir", "open"])
@pytest.mark.parametrize("after", range(8))
def test_a_disk_fault_at_any_moment_and_a_later_power_loss_lose_no_key(broker, operation, after):
    send_numbered(broker, *range(10, 30))
    data = bytes(broker.log.data)
    disk, left = SimDisk(), after

    def strikes(found: str, path: str) -> bool:
        nonlocal left
        left -= found == operation and path.startswith("keyindex")
        return left < 0

    def holds_all(index: KeyIndex) -> bool:
        return all(index.positions("orders", b"k%d" % number, *FOREVER, 8) for number in range(10, 30))

    index = KeyIndex(disk, SMALL_LAYOUT)
    index.load("one")
    disk.fail(strikes, errno.ENOSPC)
    with suppress(OSError):
        index.add_block(data, 0)
    disk.faults.clear()
    index.positions("orders", b"k10", *FOREVER, 8)
    start = index.load("one") if index.in_doubt else 0
    assert index.add_block(data[start:], start) == len(data)
    assert holds_all(index)
    index.save()
    disk.crash(random.Random(1), "none")
    index = KeyIndex(disk, SMALL_LAYOUT)
    assert index.load("one") == len(data)
    assert holds_all(index)


def test_a_key_index_with_a_failed_sync_is_reopened_before_its_position_advances():
    broker = filled()
    disk, keys = broker.disk, broker.machine.keys
    broker.run(keys.save())
    saved = keys.position
    broker.send("orders", 0, Message(b"99", keys="k0"))
    disk.fail(lambda operation, path: operation == "datasync" and path.startswith("keyindex/2"))

    async def life() -> list:
        keys.start()
        while disk.faults:
            await pause(broker, 0.1)
        queries = KeyQueries(keys, broker.machine.lookup)
        before = await broker.env.finish(queries.query("orders", "k0", 3, *FOREVER, max_bytes=1 << 20))
        await broker.env.finish(keys.catch_up())
        await broker.env.finish(keys.save())
        keys.abandon()
        return [record[88:90] for record in before.records]

    newest = [b"99", b"96", b"93"]
    assert broker.run(life()) == newest, "nothing is missing before the index is opened again"
    disk.crash(random.Random(1), "none")
    again = reopened(broker)
    assert again.machine.keys.position == keys.position > saved
    assert bodies_of(again, "k0", 3) == newest


def test_a_key_index_wiped_during_its_opening_is_opened_again(monkeypatch):
    broker = filled()
    broker.run(broker.machine.keys.save())
    again = broker.restart()
    keys, load, emptied = again.machine.keys, KeyIndex.load, []

    def load_as_it_is_emptied(index: KeyIndex, incarnation: str) -> int:
        position = load(index, incarnation)
        if not emptied:
            emptied.append(position)
            keys.wipe()
        return position

    monkeypatch.setattr(KeyIndex, "load", load_as_it_is_emptied)
    again.run(keys.load())
    assert emptied[0] > 0
    assert keys.position == 0
    again.run(keys.catch_up())
    assert len(bodies_of(again, "k1", count=100)) == 30


def test_a_checkpoint_that_rots_while_a_node_runs_is_written_again(broker):
    send_numbered(broker, *range(20))
    keys = broker.machine.keys

    async def life() -> None:
        broker.machine.start()
        while keys.lag_bytes or not broker.disk.exists(CHECKPOINT):
            await pause(broker, 0.1)
        saved = content(broker.disk, CHECKPOINT)
        broker.disk.flip_bit(CHECKPOINT, 77)
        await pause(broker, keysearch.SCRUB_S + 1)
        await pause(broker, 1.0)
        assert content(broker.disk, CHECKPOINT) == saved
        keys.abandon()

    broker.run(life())
    assert reopened(broker).machine.keys.position == keys.position


async def test_an_unexpected_error_ends_no_indexing(broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.send("orders", 0, Message(b"01", keys="k"))
    keys = broker.machine.keys
    add_block = keys._index.add_block

    def fail_once(data: bytes, position: int) -> int:
        monkeypatch.setattr(keys._index, "add_block", add_block)
        raise KeyError("nobody expected that")

    monkeypatch.setattr(keys._index, "add_block", fail_once)
    keys.start()
    async with asyncio.timeout(20):
        while keys.lag_bytes:
            broker.env.advance(0.01)
            await asyncio.sleep(0)
    assert keys.restarts == 1
    keys.abandon()


def verify_all(broker: BrokerInMemory) -> None:
    """Verify all groups one by one, as the scrub does."""
    keys, place = broker.machine.keys, ("", 0)
    for _ in range(10):
        place = broker.run(keys._work(partial(keys._index.verify, *place, 1)))


@pytest.mark.parametrize("kind", ["entry", "slot", "sealed entry", "lost"])
@pytest.mark.parametrize("found_by", ["query", "scrub", "start"])
def test_a_rotten_key_index_hides_no_key_and_is_rebuilt(kind, found_by):
    broker = filled()
    before = bodies_of(broker, "k1", count=100)
    broker.run(broker.machine.keys.save(slots=True))
    sealed, active = (f"keyindex/{name}" for name in sorted(broker.disk.listdir("keyindex"))[:2])
    slots, slots_bytes = 40, 4 * SMALL.index_slots
    if kind == "lost":
        broker.disk.unlink(sealed)
    else:
        path, place, size = {
            "entry": (active, slots + slots_bytes + 20, 20),
            "slot": (sealed, slots, slots_bytes),
            "sealed entry": (sealed, slots + slots_bytes + 200, 20),
        }[kind]
        data = content(broker.disk, path)
        broker.disk.flip_bit(path, 8 * next(at for at in range(place, place + size) if data[at]) + 1)
    if found_by == "start":
        broker = broker.restart()
    keys = broker.machine.keys
    if found_by == "scrub":
        with pytest.raises(IndexDamageError):
            verify_all(broker)
    assert bodies_of(broker, "k1", count=100) == before
    broker.run(keys.catch_up())
    assert keys.lag_bytes == 0
    assert bodies_of(broker, "k1", count=100) == before
