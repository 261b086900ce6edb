"""A scrub that verifies a snapshot holds its file open. A worker closes the file, also if the snapshot is removed."""

from typing import Any, cast

import pytest

from dledger.errors import CorruptionError, LogFullError
from dledger.replica.snapshots.keeping import SCRUB_BYTES, SnapshotKeeper, _Attempt
from dledger.replica.standing import ConnectedPeers
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import Membership, ReplicaId, SnapshotMeta
from tests.dledger.fake_driver import HeldWork, Unfailing

META = SnapshotMeta(4096, 17, 3, 99, Membership((ReplicaId("a", "1"),)))


class Lane(HeldWork):
    def now(self) -> float:
        return 1.0


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def snapshots(disk: SimDisk) -> SnapshotStore:
    store = SnapshotStore.open(disk)
    writer = store.begin(META)
    writer.write(bytes(3 * SCRUB_BYTES))
    writer.commit()
    return store


def keeper_of(snapshots: SnapshotStore, lane: Lane) -> SnapshotKeeper:
    nothing = cast(Any, None)
    return SnapshotKeeper(
        "a", cast(Any, lane), nothing, nothing, snapshots, ConnectedPeers(), nothing, nothing, Unfailing(), rest_s=0.0
    )


@pytest.mark.parametrize("ends", ["with the snapshot", "with the replica"])
def test_the_file_of_a_snapshot_that_is_half_verified_is_closed_by_a_worker(
    snapshots: SnapshotStore, ends: str
) -> None:
    lane = Lane()
    keeper = keeper_of(snapshots, lane)
    keeper.tick()
    lane.work_once()
    steps = keeper._verify_steps
    assert steps is not None
    assert steps.gi_frame is not None, "there is more to verify"
    if ends == "with the replica":
        keeper.stop()
        keeper.close()
    else:
        snapshots.delete(META.position)
        keeper.tick()
        assert steps.gi_frame is not None, "the event loop has not closed it"
        lane.work_once()
    assert steps.gi_frame is None


def test_a_snapshot_is_not_rotten_because_no_more_files_can_be_opened(disk: SimDisk, snapshots: SnapshotStore) -> None:
    disk.flip_bit(f"snapshots/{META.position:020d}", 8 * (2 * SCRUB_BYTES + 100))
    lane = Lane()
    keeper = keeper_of(snapshots, lane)
    disk.max_files = disk.open_files
    for _ in range(3):
        keeper.tick()
        lane.work_once()
    assert snapshots.list() == [META]
    disk.max_files = None
    while not snapshots.rotten:
        keeper.tick()
        lane.work_once()
    assert list(snapshots.rotten) == [META.position], "it is verified from its beginning to its end"


class FullLog:
    """A log on a disk without room for anything larger than a segment."""

    segment_bytes = 4096

    def require_room_beside(self, size: int) -> None:
        raise LogFullError(f"no room for {size} bytes")


def test_a_copy_takes_no_more_space_than_its_peer_told_at_first_and_the_log_can_spare(snapshots: SnapshotStore):
    keeper = keeper_of(snapshots, Lane())
    keeper._store = cast(Any, FullLog())
    with pytest.raises(LogFullError):
        keeper._collect(_Attempt(META.position, META), memoryview(bytes(10)), 1 << 60)
    for more, size in ((10, 1 << 60), (95, 100)):
        attempt = _Attempt(META.position, META)
        assert keeper._collect(attempt, memoryview(bytes(10)), 100) is None
        with pytest.raises(CorruptionError):
            keeper._collect(attempt, memoryview(bytes(more)), size)
        attempt.abort()
