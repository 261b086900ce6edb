import errno
import random
import sys
from threading import Thread

import pytest
from store_model import MEMBERS

from dledger.errors import CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.store.disk import Disk
from dledger.store.snapshots import MAX_CHUNK_BYTES, SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import SnapshotMeta


def meta_at(position: int) -> SnapshotMeta:
    return SnapshotMeta(position, position // 10, 3, 77, MEMBERS, 4)


def put(store: SnapshotStore, position: int, *chunks: bytes) -> SnapshotMeta:
    writer = store.begin(meta_at(position))
    for chunk in chunks:
        writer.write(chunk)
    return writer.commit()


def names_of_files(disk: Disk) -> list[str]:
    return disk.listdir("snapshots")


def test_a_snapshot_is_read_as_written(disk: Disk):
    store = SnapshotStore.open(disk)
    content = random.Random(1).randbytes(3 * MAX_CHUNK_BYTES + 17)
    meta, empty = put(store, 4096, content[:10], b"", content[10:]), put(store, 8192)
    store = SnapshotStore.open(disk)
    assert store.list() == [meta, empty]
    for size in (1000, 256 << 10, 10 << 20):
        pieces = list(store.read_chunks(meta, size))
        assert b"".join(pieces) == content
        assert {len(piece) for piece in pieces[:-1]} <= {size}
    store.verify(meta)
    assert list(store.read_chunks(empty)) == []


def test_snapshots_are_found_by_position(disk: Disk):
    store = SnapshotStore.open(disk)
    assert store.latest() is None
    first, second = put(store, 100), put(store, 300)
    assert store.latest() == second
    assert store.at_or_below(99) is None
    assert store.at_or_below(100) == store.at_or_below(299) == first
    assert store.at_or_below(1000) == second
    store.delete(300)
    assert store.list() == SnapshotStore.open(disk).list() == [first]


def test_an_unfinished_snapshot_does_not_exist(disk: Disk):
    store = SnapshotStore.open(disk)
    aborted = store.begin(meta_at(100))
    aborted.write(b"half")
    aborted.abort()
    left = store.begin(meta_at(200))
    left.write(b"half")
    assert SnapshotStore.open(disk).list() == []
    assert disk.listdir("snapshots") == []


def test_a_committed_snapshot_survives_every_crash_and_a_torn_one_is_never_listed():
    for seed in range(60):
        rng = random.Random(seed)
        disk = SimDisk(rng)
        store = SnapshotStore.open(disk)
        disk.sync_dir("")
        kept = put(store, 100, b"x" * 5000)
        torn = store.begin(meta_at(200))
        torn.write(b"y" * 5000)
        disk.crash(rng)
        store = SnapshotStore.open(disk)
        assert store.list() == [kept]
        store.verify(kept)


def test_every_flipped_bit_is_found_and_a_shortened_file_is_passed_over_with_a_report(sim_disk: SimDisk):
    meta = put(SnapshotStore.open(sim_disk), 100, b"abcdef", b"ghi")
    path = "snapshots/" + "100".zfill(20)
    for bit in range(8 * sim_disk.open(path).size()):
        sim_disk.flip_bit(path, bit)
        store = SnapshotStore.open(sim_disk)
        if store.list():
            with pytest.raises(CorruptionError, match="snapshots/"):
                store.verify(store.list()[0])
        else:
            assert len(store.report.invalid) == 1
            assert path in store.report.invalid[0]
        sim_disk.flip_bit(path, bit)
    assert SnapshotStore.open(sim_disk).list() == [meta]
    for left in (120, 40, 12, 3, 0):
        sim_disk.open(path).truncate(left)
        store = SnapshotStore.open(sim_disk)
        assert (store.list(), len(store.report.invalid)) == ([], 1)


@pytest.mark.parametrize("refused", ["open", "reserve", "write"])
def test_a_snapshot_without_disk_space_fails_and_leaves_no_file(sim_disk: SimDisk, refused: str):
    """Only the old snapshot stays. A snapshot that is written when there is room again is kept."""
    store = SnapshotStore.open(sim_disk)
    kept = put(store, 100, b"abc")
    if refused == "write":
        sim_disk.capacity_bytes = sim_disk.allocated_bytes + (2 << 20)
    sim_disk.fail(lambda operation, path: operation == refused and path.endswith(".tmp"), errno.ENOSPC, once=False)
    writer = store.begin(meta_at(200))
    with pytest.raises(LogFullError, match="200"):
        writer.write(bytes(4 << 20))
    writer.abort()
    sim_disk.faults.clear()
    assert (store.list(), [name for name in names_of_files(sim_disk) if name.endswith(".tmp")]) == ([kept], [])
    put(store, 200, b"abc")


def test_beginning_and_aborting_a_snapshot_touches_no_disk(sim_disk: SimDisk):
    """The event loop begins snapshots, so that step must not touch the disk."""
    store = SnapshotStore.open(sim_disk)
    sim_disk.fail(lambda _operation, _path: True, once=False)
    store.begin(meta_at(100)).abort()


def test_a_snapshot_whose_sync_fails_raises_an_error_and_leaves_no_file(sim_disk: SimDisk):
    store = SnapshotStore.open(sim_disk)
    writer = store.begin(meta_at(100))
    sim_disk.fail(lambda operation, path: operation in {"datasync", "truncate"}, once=False)
    with pytest.raises(StorageError, match="100"):
        writer.commit()
    assert (store.list(), names_of_files(sim_disk)) == ([], [])


def test_a_snapshot_may_be_deleted_while_it_is_read(disk: Disk):
    store = SnapshotStore.open(disk)
    meta = put(store, 100, b"abc", b"def")
    chunks = store.read_chunks(meta, 3)
    assert next(chunks) == b"abc"
    store.delete(100)
    assert next(chunks) == b"def"
    with pytest.raises(TrimmedError, match="100"):
        list(store.read_chunks(meta))


def test_snapshots_added_during_removals_of_others_are_not_lost():
    store = SnapshotStore.open(SimDisk())
    old, new = range(300), range(1000, 1300)
    for position in old:
        store.add(meta_at(position))
    worker = Thread(target=lambda: [store.add(meta_at(position)) for position in new])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        worker.start()
        for position in old:
            store.forget(position)
        worker.join()
    finally:
        sys.setswitchinterval(before)
    assert [meta.position for meta in store.list()] == [*new]


def test_a_snapshot_removed_by_a_trim_during_its_commit_is_not_listed(
    sim_disk: SimDisk, monkeypatch: pytest.MonkeyPatch
):
    """One worker has renamed the file and syncs the directory. Another removes everything below the log's start."""
    store = SnapshotStore.open(sim_disk)
    writer = store.begin(meta_at(100))
    writer.write(b"abc")
    removal = Thread(target=lambda: store.remove_below(200))
    sync_dir = sim_disk.sync_dir

    def sync_slowly(path: str) -> None:
        if not removal.ident:
            removal.start()
            removal.join(0.2)  # long enough for the removal, if nothing holds it back
        sync_dir(path)

    monkeypatch.setattr(sim_disk, "sync_dir", sync_slowly)
    writer.commit()
    removal.join()
    assert [f"{meta.position:020d}" for meta in store.list()] == names_of_files(sim_disk)
