"""A node whose log begins later than others' fetches the earlier part, and has it after its next start."""

import shutil
from pathlib import Path

import msgspec
import pytest
from node_group import SEGMENT_BYTES, Group, has_trimmed, until

from dledger.errors import CorruptionError
from dledger.replica.upkeep import fetching
from dledger.store import earlier
from dledger.store.disk import OsDisk
from dledger.store.log import LogStore
from dledger.store.segments import list_positions
from dledger.store.snapshots import SnapshotStore
from dledger.store.verify import verify
from dledger.types import Membership, SnapshotMeta


async def later_log(group: Group, *, from_the_beginning: bool) -> str:
    """Return a node whose log begins later than the others' logs.

    The others' logs begin at the beginning, or at a first snapshot.
    """
    await group.append(10)
    await group.append_until_trimmable(3)
    leader = await group.leader()
    late = next(node_id for node_id in group.ids if group.nodes[node_id] is not leader)
    first, _, later = group.trim_candidates()[:3]
    if not from_the_beginning:
        await group.trim(first)
    node = group.nodes[late]
    node.replica.upkeep.fetcher.stop()
    node.replica._taker.trim(later)
    await until(lambda: has_trimmed(node, later), "a log that begins later")
    await group.stop(late)
    return late


def whole_part(group: Group, node_id: str) -> bool:
    plan = earlier.read_plan(OsDisk(str(group.home(node_id))))
    return plan is not None and plan.whole


async def fetch(group: Group, node_id: str) -> None:
    """Start a node, and wait until it has the missing part."""
    await group.start(node_id)
    await until(lambda: whole_part(group, node_id), "it is fetched")


@pytest.mark.parametrize("from_the_beginning", [True, False])
async def test_the_missing_part_is_fetched_and_is_the_logs_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_the_beginning: bool
):
    monkeypatch.setattr(fetching, "ANSWER_S", 0.2)
    async with Group(tmp_path, derived=("views",), fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=from_the_beginning)
        (group.home(late) / "views").mkdir()
        silent = min(group.nodes)
        monkeypatch.setattr(group.nodes[silent].replica.repairer, "on_data", lambda *_: None)
        await group.start(late)
        begins = min(node.first_position for node in group.nodes.values())
        node = group.nodes[late]
        assert node.first_position > begins
        await until(lambda: whole_part(group, late), "the part is fetched")
        assert node.first_position > begins, "nothing of a log that is open changes"
        assert (group.home(late) / "views").is_dir()
        await group.append(20)
        await group.stop(late)
        await group.start(late)
        assert group.nodes[late].first_position == begins
        assert not (group.home(late) / "views").exists(), "what is derived is made anew from the longer log"
        assert not (group.home(late) / "earlier").exists()
        await group.append(20)
        await group.agrees()
        await group.stop()
        reports = group.verified()
        assert [report.problems for report in reports] == [[], [], []]
        assert len({report.first_position for report in reports}) == 1
        metas = [group.metas(node_id) for node_id in group.ids]
        assert metas[0][: len(metas[1])] == metas[1][: len(metas[0])]


class CutShort(OsDisk):
    """Disk of a process that is killed before its change number `left`."""

    def __init__(self, root: str, left: int) -> None:
        super().__init__(root)
        self.left = left

    def _change(self) -> None:
        if not self.left:
            raise ProcessLookupError("killed")
        self.left -= 1

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def rmtree(self, path: str) -> None:
        self._change()
        super().rmtree(path)


async def test_a_start_interrupted_while_joining_fetched_segments_leaves_a_whole_log(tmp_path: Path):
    async with Group(tmp_path / "group", derived=("views",), fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=False)
        await fetch(group, late)
        home = group.home(late)
    plan = earlier.read_plan(OsDisk(str(home)))
    assert plan is not None
    assert len(plan.segments) > 1
    changes = len(plan.segments) + 3  # the derived files, the snapshot, the directory
    for left in range(changes + 1):
        copy = tmp_path / str(left)
        shutil.copytree(home, copy)
        if left < changes:
            with pytest.raises(ProcessLookupError):
                earlier.join_earlier(CutShort(str(copy), left), plan.incarnation, ("views",))
        else:
            assert earlier.join_earlier(CutShort(str(copy), left), plan.incarnation, ("views",)) is not None
        # An older build that ignores the directory may start in between.
        if left < changes - 1:
            older = tmp_path / f"{left}-older"
            shutil.copytree(copy, older)
            assert begins_at(group, late, older) == plan.end
            assert list_positions(OsDisk(str(older)), "commitlog")[0] == plan.end, "and keeps nothing in front of it"
            earlier.join_earlier(OsDisk(str(older)), plan.incarnation, ("views",))
            assert begins_at(group, late, older) in {plan.first, plan.end}
        earlier.join_earlier(OsDisk(str(copy)), plan.incarnation, ("views",))
        assert begins_at(group, late, copy) == plan.first
        assert not (copy / "earlier").exists()


def begins_at(group: Group, node_id: str, directory: Path) -> int:
    """Open the log as a start does, without joining anything, check it, and return its first position."""
    disk = OsDisk(str(directory))
    snapshots = SnapshotStore.open(disk)
    log, recovery = LogStore.open(disk, segment_bytes=SEGMENT_BYTES, snapshots=snapshots, reserve_bytes=0)
    log.close(clean=True)
    report = verify(str(directory))
    assert (report.problems, report.first_position) == ([], recovery.first_position)
    return recovery.first_position


async def test_a_fetched_part_resumes_and_is_refused_if_it_does_not_join_the_log(tmp_path: Path):
    group = Group(tmp_path / "group")
    await group.start_with(200)
    await group.stop()
    whole = (group.home("n0") / "commitlog" / f"{0:020d}").read_bytes()
    disk = OsDisk(str(tmp_path / "node"))
    part = earlier.EarlierPart.resumed_or_begun(disk, SEGMENT_BYTES, "i", 0, 2 * SEGMENT_BYTES)
    rotten = bytearray(whole)
    rotten[1000] ^= 4
    part.write(part.segment_path, bytes(rotten), 0)
    with pytest.raises(CorruptionError):
        part.take_segment()
    part.write(part.segment_path, whole, 0)
    part.take_segment()
    again = earlier.EarlierPart.resumed_or_begun(disk, SEGMENT_BYTES, "i", 0, 2 * SEGMENT_BYTES)
    assert again.plan == part.plan
    assert again.plan.position == SEGMENT_BYTES
    plan = again.plan
    other = SnapshotMeta(plan.position, plan.index, plan.term, plan.chain ^ 1, Membership(), -1)
    with pytest.raises(CorruptionError, match="the log begins behind"):
        again.finish(other)
    assert earlier.EarlierPart.resumed_or_begun(disk, SEGMENT_BYTES, "j", 0, 2 * SEGMENT_BYTES).plan.position == 0
    assert earlier.join_earlier(disk, "j", ()) is None


async def test_a_snapshot_of_any_size_that_a_peer_tells_takes_no_space_that_the_log_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = SnapshotStore.read_file

    def boasting(self: SnapshotStore, position: int, offset: int, size: int) -> tuple[bytes, int]:
        return read(self, position, 0, size)[0], 1 << 60

    async with Group(tmp_path, fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=False)
        monkeypatch.setattr(SnapshotStore, "read_file", boasting)
        await group.start(late)
        fetcher = group.nodes[late].replica.upkeep.fetcher
        await until(lambda: len(fetcher._failed) > 0, "a peer is refused")
        assert not (group.home(late) / earlier.SNAPSHOT).exists()
        monkeypatch.setattr(SnapshotStore, "read_file", read)
        await until(lambda: whole_part(group, late), "it is fetched from one that tells the truth")


async def test_a_segment_that_does_not_verify_costs_none_that_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A part may have taken hours, and the peer with the rotten segment is the one with the longest log."""
    positions: list[int] = []
    save, read, rotten = earlier.EarlierPart._save, LogStore.read, [True]

    def saved(self: earlier.EarlierPart, plan: earlier.Plan) -> None:
        positions.append(plan.position)
        save(self, plan)

    def read_rotten(self: LogStore, position: int, size: int) -> bytes:
        data = bytearray(read(self, position, size))
        if positions and rotten and position // SEGMENT_BYTES == positions[0] // SEGMENT_BYTES + 1:
            rotten.clear()
            data[100] ^= 1
        return bytes(data)

    async with Group(tmp_path, fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=False)
        monkeypatch.setattr(earlier.EarlierPart, "_save", saved)
        monkeypatch.setattr(LogStore, "read", read_rotten)
        await fetch(group, late)
        assert not rotten
        assert len(positions) == len(range(positions[0], positions[-1], SEGMENT_BYTES)) + 2
        assert positions == sorted(positions)


async def test_a_part_of_another_log_than_the_one_behind_it_is_not_joined(tmp_path: Path):
    async with Group(tmp_path, fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=False)
        await fetch(group, late)
    disk = OsDisk(str(group.home(late)))
    plan = earlier.read_plan(disk)
    assert plan is not None
    earlier.EarlierPart(disk, plan)._save(msgspec.structs.replace(plan, chain=plan.chain ^ 1))
    assert earlier.join_earlier(disk, plan.incarnation, ()) is None
    assert not disk.exists(earlier.DIRECTORY)
    assert begins_at(group, late, group.home(late)) == plan.end


async def test_a_part_of_which_the_group_trims_a_piece_is_dropped_though_this_log_begins_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    drop, errors = LogStore.drop_earlier, [OSError("not now")]

    def failing(self: LogStore) -> None:
        if errors:
            raise errors.pop()
        drop(self)

    monkeypatch.setattr(LogStore, "drop_earlier", failing)
    async with Group(tmp_path, fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=True)
        await fetch(group, late)
        begins = group.nodes[late].first_position
        other = next(node for node_id, node in group.nodes.items() if node_id != late)
        inside = next(meta.position for meta in other.replica.snapshots.list() if 0 < meta.position < begins)
        for node in group.nodes.values():
            node.replica._taker.trim(inside)
        await until(lambda: not (group.home(late) / earlier.DIRECTORY).exists(), "it is dropped")
        assert not errors
        assert group.nodes[late].first_position == begins


async def test_a_part_that_the_group_trims_is_dropped(tmp_path: Path):
    async with Group(tmp_path, fetch_pause_ms=200) as group:
        late = await later_log(group, from_the_beginning=True)
        await fetch(group, late)
        home = group.home(late)
        begins = group.nodes[late].first_position
        while not (candidates := [one for one in group.trim_candidates() if one > begins]):
            await group.append_until_trimmable(len(group.trim_candidates()) + 1)
        for node in group.nodes.values():
            node.replica._taker.trim(candidates[0])
        await until(lambda: not (home / "earlier").exists(), "it is dropped")
        await group.stop(late)
        await group.start(late)
        assert group.nodes[late].first_position == candidates[0]
