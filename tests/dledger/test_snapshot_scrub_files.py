"""Whoever verifies a snapshot has its file open: a worker closes that, also once the snapshot is gone."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from dledger.replica.snapshot_keeper import SCRUB_BYTES, SnapshotKeeper
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import Membership, ReplicaId, SnapshotMeta
from tests.dledger.fake_driver import Unfailing

META = SnapshotMeta(4096, 17, 3, 99, Membership((ReplicaId("a", "1"),)))


class Lane:
    """An environment whose worker does nothing before it is told to."""

    def __init__(self) -> None:
        self.works: deque[Callable[[], None]] = deque()

    def now(self) -> float:
        return 1.0

    def run_blocking(self, _lane: str, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.works.append(lambda: done(work()))


@pytest.fixture
def snapshots() -> SnapshotStore:
    store = SnapshotStore.open(SimDisk())
    writer = store.begin(META)
    writer.write(bytes(3 * SCRUB_BYTES))
    writer.commit()
    return store


def keeper_of(snapshots: SnapshotStore, lane: Lane) -> SnapshotKeeper:
    nothing = cast(Any, None)
    return SnapshotKeeper(
        "a", cast(Any, lane), nothing, nothing, snapshots, {}, nothing, nothing, Unfailing(), rest_s=0.0
    )


@pytest.mark.parametrize("ends", ["with the snapshot", "with the replica"])
def test_the_file_of_a_snapshot_that_is_half_verified_is_closed_by_a_worker(
    snapshots: SnapshotStore, ends: str
) -> None:
    lane = Lane()
    keeper = keeper_of(snapshots, lane)
    keeper.tick()
    lane.works.popleft()()
    steps = keeper._steps
    assert steps is not None
    assert steps.gi_frame is not None, "there is more to verify"
    if ends == "with the replica":
        keeper.stop()
        keeper.close()
    else:
        snapshots.delete(META.position)
        keeper.tick()
        assert steps.gi_frame is not None, "the event loop has not closed it"
        lane.works.popleft()()
    assert steps.gi_frame is None
