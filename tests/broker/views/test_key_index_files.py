import asyncio
import errno
import random
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_files import content

from dledger.errors import NotLeaderError
from dledger.testing.disk import SimDisk
from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.testing import SMALL, START_MS, BrokerInMemory, Message
from dledger_broker.views import keysearch
from dledger_broker.views.keyfile import (
    ActiveIndexFile,
    IndexHeader,
    IndexLayout,
    SealedIndexFile,
    as_keys,
    key_hash,
    key_hashes,
)
from dledger_broker.views.keyindex import KeyIndex
from dledger_broker.views.keyscan import record_keys
from dledger_broker.views.keysearch import FAR_BEHIND_BYTES, core_share
from dledger_remoting.filters.tags import java_hash
from dledger_remoting.record import RecordRef

SMALL_LAYOUT = IndexLayout(slots=4, entries=6)
FOREVER = (0, 1 << 60)


def test_the_layout_is_rocketmqs():
    layout = IndexLayout()
    assert layout.file_bytes == 420_000_040
    assert layout.entry_at(1) == 40 + 4 * 5_000_000 + 20


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [("T1", b"k0", 79072523), ("T1", b"UNIQ", 1321340953), ("T", b"0jdpfbq", 0)],
)
def test_hashes_of_known_keys(topic, key, expected):
    """The last one is the smallest number in Java, which has no absolute value."""
    assert key_hash(topic, key) == expected
    assert key_hashes(topic, np.frombuffer(key, np.uint8).reshape(1, -1)).tolist() == [expected]


@given(st.text(max_size=20), st.text(max_size=300))
def test_a_hash_is_that_of_java(topic, key):
    code = java_hash(f"{topic}#{key}")
    assert key_hash(topic, key.encode()) == (0 if code == -(1 << 31) else abs(code))


@given(st.text(max_size=20), st.integers(1, 300), st.data())
def test_hashes_of_many_keys_at_once_are_those_of_each(topic, length, data):
    keys = data.draw(st.lists(st.text(st.characters(max_codepoint=127), min_size=length, max_size=length), min_size=1))
    rows = np.frombuffer("".join(keys).encode(), np.uint8).reshape(-1, length)
    assert key_hashes(topic, rows).tolist() == [key_hash(topic, key.encode()) for key in keys]


def test_a_file_byte_for_byte():
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
        )
    )


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
    again = ActiveIndexFile(disk, "f", layout, file.header, slots_entries)
    for code in set(codes):
        assert list(again.positions(code, *FOREVER)) == list(file.positions(code, *FOREVER))


def test_the_keys_of_a_record():
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
def test_messages_are_found_by_key_before_and_after_they_are_indexed(indexed):
    broker = BrokerInMemory()
    broker.create_topic("orders")
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


def test_a_query_gives_what_fits_into_an_answer_and_never_nothing():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10, 13):
        broker.send("orders", 0, Message(b"%d" % number + bytes(1000), keys="large"))
    assert bodies_of(broker, "large", size=2500) == [b"12", b"11"]
    assert bodies_of(broker, "large", size=1) == [b"12"]


def test_a_query_joins_what_is_indexed_with_what_is_not():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"01", keys="k"))
    broker.run(broker.machine.keys.catch_up())
    broker.send("orders", 0, Message(b"02", keys="k"))
    assert bodies_of(broker, "k") == [b"02", b"01"]


def test_a_time_range_limits_a_query():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10):
        broker.send("orders", 0, Message(b"%02d" % number, keys="k"), at_ms=START_MS + 1000 * number)
    expected = [b"05", b"04", b"03"]
    assert bodies_of(broker, "k", begin=START_MS + 3000, end=START_MS + 5000) == expected
    broker.run(broker.machine.keys.catch_up())
    assert bodies_of(broker, "k", begin=START_MS + 3000, end=START_MS + 5000) == expected


async def pause(broker: BrokerInMemory, seconds: float) -> None:
    future = asyncio.get_running_loop().create_future()
    broker.env.call_later(seconds, lambda: future.set_result(None))
    await broker.env.finish(future)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_range_holds_though_the_next_leaders_clock_is_behind(*, indexed: bool, sealed: bool):
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number, at_ms in enumerate([START_MS, START_MS - 60_000, START_MS - 30_000], 10):
        broker.send("orders", 0, Message(b"%d" % number, keys="red"), at_ms=at_ms)
    for _ in range(SMALL.index_entries if sealed else 0):
        broker.send("orders", 0, Message(b"xx", keys="blue"), at_ms=START_MS - 30_000)
    if indexed:
        broker.run(broker.machine.keys.catch_up())
    assert bodies_of(broker, "red", begin=START_MS - 1000) == [b"10"]
    assert bodies_of(broker, "red", begin=START_MS - 61_000, end=START_MS - 59_000) == [b"11"]
    assert bodies_of(broker, "red", end=START_MS - 20_000) == [b"12", b"11"]


def filled() -> BrokerInMemory:
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10, 99):
        broker.send("orders", 0, Message(b"%d" % number, keys=f"k{number % 3}"), at_ms=START_MS + number)
    broker.run(broker.machine.keys.catch_up())
    return broker


def test_files_roll_when_they_are_full_and_are_named_by_time():
    broker = filled()
    broker.run(broker.machine.keys.save())
    names = sorted(name for name in broker.disk.listdir("keyindex") if name != "checkpoint")
    assert names == ["20231114221320010", "20231114221320059"]
    header = struct.unpack(">qqqqii", content(broker.disk, f"keyindex/{names[0]}")[:40])
    assert header[0] == START_MS + 10
    assert header[5] == SMALL.index_entries


@pytest.mark.parametrize("clean", [False, True])
def test_the_index_goes_on_where_it_was_saved(clean):
    broker = filled()
    before = bodies_of(broker, "k1", count=100)
    if clean:
        broker.run(broker.machine.keys.close())
    else:
        broker.run(broker.machine.keys.save())
    again = broker.restart()
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == broker.machine.keys.position
    again.send("orders", 0, Message(b"99", keys="k1"))
    again.run(again.machine.keys.catch_up())
    assert bodies_of(again, "k1", count=100) == [b"99", *before]


def test_a_crash_behind_a_full_file_costs_no_key():
    """1. A clean stop leaves slots; 2. the file is filled, its slots are written; 3. a crash before a checkpoint."""
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10, 13):
        broker.send("orders", 0, Message(b"%d" % number, keys=f"k{number}"), at_ms=START_MS + number)
    disk = SimDisk()
    index = KeyIndex(disk, SMALL_LAYOUT)
    index.load("one")
    saved = index.add_block(bytes(broker.log.data), 0)
    index.save()
    index.save_slots()
    index.close()
    for number in range(13, 30):
        broker.send("orders", 0, Message(b"%d" % number, keys=f"k{number}"), at_ms=START_MS + number)
    data = bytes(broker.log.data)
    for _ in range(2):
        index = KeyIndex(disk, SMALL_LAYOUT)
        assert index.load("one") == saved
        index.add_block(data[saved:], saved)
        assert all(len(index.positions("orders", b"k%d" % number, *FOREVER, 8)) == 1 for number in range(10, 30))


def test_an_index_that_is_closed_sends_queries_elsewhere_and_does_not_say_that_nothing_is_there():
    broker = filled()
    broker.run(broker.machine.keys.catch_up())
    broker.run(broker.machine.keys.close())
    with pytest.raises(NotLeaderError, match="stopping"):
        bodies_of(broker, "k1")


@pytest.mark.parametrize("victim", ["checkpoint", "20231114221320010", "20231114221320059", ""])
def test_a_lost_file_means_that_the_index_is_built_again(victim):
    broker = filled()
    before = bodies_of(broker, "k1", count=100)
    broker.run(broker.machine.keys.save())
    if victim:
        broker.disk.unlink(f"keyindex/{victim}")
    else:
        broker.disk.rmtree("keyindex")
    again = broker.restart()
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == 0
    assert bodies_of(again, "k1", count=100) == before
    again.run(again.machine.keys.catch_up())
    assert bodies_of(again, "k1", count=100) == before


def test_queries_that_come_while_the_index_is_opened_open_it_once(monkeypatch):
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
def test_a_search_goes_on_behind_a_snapshot_that_replaces_the_log_meanwhile(monkeypatch, cold):
    broker = BrokerInMemory()
    broker.create_topic("orders")
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


def test_an_index_of_another_incarnation_of_the_directory_is_not_trusted():
    broker = filled()
    broker.run(broker.machine.keys.save())
    again = broker.restart()
    again.machine.keys.incarnation = "another"
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == 0


def test_the_index_is_never_saved_ahead_of_the_durable_log():
    broker = filled()
    broker.node.durable_limit = 0
    broker.run(broker.machine.keys.save())
    assert not broker.disk.exists("keyindex/checkpoint")
    broker.node.durable_limit = None
    broker.run(broker.machine.keys.save())
    assert broker.disk.exists("keyindex/checkpoint")


def test_files_of_trimmed_messages_go():
    broker = filled()
    index = broker.machine.keys
    broker.run(index.save())
    index.trimmed(broker.log.end)
    broker.env.run_ready()
    assert sorted(broker.disk.listdir("keyindex")) == ["20231114221320059", "checkpoint"]


def test_a_crash_after_a_trim_does_not_cost_what_is_still_indexed():
    broker = filled()
    broker.run(broker.machine.keys.save())
    indexed = broker.machine.keys.position
    broker.machine.keys.trimmed(broker.log.end)
    broker.env.run_ready()
    again = broker.restart()
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == indexed


def test_the_indexer_runs_behind_the_log_and_stops_cleanly():
    broker = BrokerInMemory()
    broker.create_topic("orders")
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
    assert broker.disk.exists("views/checkpoint-0")


def fail_writes(disk: SimDisk, operation: str, prefix: str) -> None:
    disk.fail(lambda found, path: found == operation and path.startswith(prefix), errno.ENOSPC)


def test_a_failed_write_of_entries_leaves_no_gap_in_a_chain():
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", SMALL_LAYOUT, IndexHeader(), 1)
    file.add(as_keys([(5, 100, 1000)]))
    fail_writes(disk, "pwrite", "f")
    more = as_keys([(5, 200, 2000), (5, 300, 3000)])
    with pytest.raises(OSError, match="No space"):
        file.add(more)
    assert list(file.positions(5, *FOREVER)) == [100]
    file.add(more)
    assert list(file.positions(5, *FOREVER)) == [300, 200, 100]


def test_a_file_can_be_closed_while_somebody_still_has_the_error_of_its_last_write():
    """An error knows the variables of what failed, and so pieces of the file's memory."""
    disk = SimDisk()
    file = ActiveIndexFile(disk, "f", SMALL_LAYOUT, IndexHeader(), 1)
    file.add(as_keys([(5, 100, 1000)]))
    fail_writes(disk, "pwrite", "f")
    with pytest.raises(OSError, match="No space") as kept:
        file.write_slots()
    file.close()
    assert kept.value.errno == errno.ENOSPC


def test_an_index_that_falls_behind_gets_more_of_a_core_up_to_an_idle_nodes_share():
    shares = [core_share(0.04, lag) for lag in range(0, 2 * FAR_BEHIND_BYTES, FAR_BEHIND_BYTES // 4)]
    assert shares == pytest.approx([0.04, 0.0925, 0.145, 0.1975, 0.25, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("operation", ["pwrite", "datasync", "sync_dir", "open"])
@pytest.mark.parametrize("after", range(8))
def test_a_disk_that_fails_once_at_any_moment_costs_no_key_and_neither_does_a_power_loss_later(operation, after):
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(10, 30):
        broker.send("orders", 0, Message(b"%d" % number, keys=f"k{number}"), at_ms=START_MS + number)
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


def test_an_index_whose_sync_failed_is_opened_again_before_it_claims_anything():
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
    again = broker.restart()
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == keys.position > saved
    assert bodies_of(again, "k0", 3) == newest


def test_an_index_that_is_emptied_while_it_is_opened_is_opened_again(monkeypatch):
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


def test_a_checkpoint_that_rots_while_a_node_runs_is_written_again():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(20):
        broker.send("orders", 0, Message(b"%02d" % number, keys="k"))
    keys = broker.machine.keys

    async def life() -> None:
        broker.machine.start()
        while keys.lag_bytes or not broker.disk.exists("keyindex/checkpoint"):
            await pause(broker, 0.1)
        saved = content(broker.disk, "keyindex/checkpoint")
        broker.disk.flip_bit("keyindex/checkpoint", 77)
        await pause(broker, keysearch.SCRUB_S + 1)
        await pause(broker, 1.0)
        assert content(broker.disk, "keyindex/checkpoint") == saved
        keys.abandon()

    broker.run(life())
    again = broker.restart()
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == keys.position


def test_an_index_whose_checkpoint_rotted_is_built_again():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(20):
        broker.send("orders", 0, Message(b"%02d" % number, keys="k"))
    broker.run(broker.machine.keys.catch_up())
    broker.run(broker.machine.keys.save())
    broker.disk.flip_bit("keyindex/checkpoint", 77)
    again = broker.restart()
    again.run(again.machine.keys.load())
    assert again.machine.keys.position == 0
    again.run(again.machine.keys.catch_up())
    assert len(again.run(again.machine.keys.candidates("orders", b"k", 32, *FOREVER))) == 20


async def test_an_error_that_nobody_expected_does_not_end_the_indexing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BrokerInMemory()
    broker.create_topic("orders")
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
