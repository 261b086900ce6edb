import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_model import failing_after

from dledger.errors import StorageError
from dledger.store.disk import Disk
from dledger.store.hardstate import HardStateFile
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.slots import decode_slot, encode_slot
from dledger.testing.disk import SimDisk
from dledger.types import HardState, ReplicaId

ONE = HardState(3, ReplicaId("n1", "aa"))
TWO = HardState(4, None)


def test_a_saved_hard_state_is_there_after_a_restart(disk: Disk):
    file, found = HardStateFile.open(disk)
    assert found is None
    for state in (ONE, TWO, ONE):
        file.save(state)
    file.close()
    assert HardStateFile.open(disk)[1] == ONE


def test_a_saved_hard_state_survives_every_crash():
    for seed in range(100):
        rng = random.Random(seed)
        disk = SimDisk(rng)
        file, _ = HardStateFile.open(disk)
        file.save(ONE)
        file.save(TWO)
        disk.crash(rng)
        assert HardStateFile.open(disk)[1] == TWO


def test_a_torn_save_leaves_the_old_state_or_the_new():
    found = set()
    for seed in range(200):
        rng = random.Random(seed)
        disk = SimDisk(rng)
        file, _ = HardStateFile.open(disk)
        file.save(ONE)
        with suppress(StorageError), failing_after(disk, rng.randrange(5), free=()):
            file.save(TWO)
        disk.crash(rng)
        found.add(HardStateFile.open(disk)[1])
    assert found == {ONE, TWO}


@pytest.mark.parametrize("copy", [0, 1])
def test_a_rotten_copy_of_the_hard_state_is_rewritten_and_two_are_a_wiped_node(copy: int):
    disk = SimDisk()
    HardStateFile.open(disk)[0].save(ONE)
    bits = [8 * (4096 * at + 22) for at in (copy, 1 - copy)]
    for bit in bits:
        disk.flip_bit("raft/hardstate", bit)
        assert HardStateFile.open(disk)[1] == ONE
    for bit in bits:
        disk.flip_bit("raft/hardstate", bit)
    assert HardStateFile.open(disk)[1] is None


def test_a_failed_save_of_the_hard_state_raises_a_storage_error(sim_disk: SimDisk):
    file, _ = HardStateFile.open(sim_disk)
    file.save(ONE)
    sim_disk.fail(lambda operation, path: operation == "datasync")
    with pytest.raises(StorageError, match="raft/hardstate"):
        file.save(TWO)


def test_the_bytes_of_a_slot():
    assert encode_slot(5, b"abc").hex() == "444c736c47e33abd000000000000000500000003616263"


@given(st.binary(max_size=600))
def test_garbage_is_no_slot(block: bytes):
    assert decode_slot(0, block) is None


@given(st.binary(max_size=480), st.integers(0, 2**64 - 1), st.integers(0, 10_000))
def test_a_slot_with_a_flipped_bit_is_not_read(payload: bytes, sequence: int, bit: int):
    slot = bytearray(encode_slot(sequence, payload))
    found = decode_slot(1, bytes(slot) + b"\0" * 10)
    assert found is not None
    assert (found.sequence, found.payload) == (sequence, payload)
    bit %= 8 * len(slot)
    slot[bit // 8] ^= 1 << bit % 8
    assert decode_slot(1, bytes(slot)) is None


def value(at: int, generation: int = 0) -> MarkValue:
    return MarkValue(position=100 * at, index=at, term=1, chain=at, generation=generation)


def test_the_mark_written_last_is_read_back(disk: Disk):
    mark, found = DurableMark.open(disk)
    assert found is None
    assert mark.value == DurableMark.read(disk) == MarkValue(), "a new mark stands at the beginning"
    for at in range(5):
        mark.write(value(at))
        if at == 2:
            mark.sync()
    mark.close()
    assert DurableMark.read(disk) == value(4)
    assert DurableMark.open(disk)[1] == value(4)


def test_a_crash_takes_the_mark_back_to_its_last_sync_at_most():
    for seed in range(100):
        rng = random.Random(seed)
        disk = SimDisk(rng)
        mark, _ = DurableMark.open(disk)
        synced = -1
        for at in range(rng.randrange(20)):
            mark.write(value(at))
            if rng.random() < 0.3:
                mark.sync()
                synced = at
        disk.crash(rng)
        found = DurableMark.read(disk)
        assert found is not None
        assert synced <= found.index


def test_a_slot_torn_while_it_was_written_leaves_the_other(sim_disk: SimDisk):
    mark, _ = DurableMark.open(sim_disk)
    file = sim_disk.open("raft/mark")
    for at in range(4):
        mark.write(value(at))
        mark.sync()
        before = file.pread(8192, 0)
        mark.write(value(at + 100))
        after = file.pread(8192, 0)
        torn = next(at for at in range(8192) if before[at] != after[at]) // 4096
        file.pwrite(b"torn" * 20, 4096 * torn)
        assert DurableMark.read(sim_disk) == value(at)


def test_lowering_the_mark_is_durable_and_voids_older_writes(sim_disk: SimDisk):
    mark, _ = DurableMark.open(sim_disk)
    mark.write(value(9))
    mark.sync()
    mark.lower(value(4, generation=1))
    mark.write(value(12))
    sim_disk.crash(random.Random(1), keep="none")
    assert DurableMark.read(sim_disk) == value(4, generation=1)


def test_lowering_to_above_the_mark_only_voids_older_writes(sim_disk: SimDisk):
    mark, _ = DurableMark.open(sim_disk)
    mark.write(value(3))
    mark.lower(value(5, generation=1))
    mark.write(value(12))
    assert DurableMark.read(sim_disk) == value(3)
    mark.write(value(6, generation=1))
    assert DurableMark.read(sim_disk) == value(6, generation=1)
