"""A replica's promises can rot. One rotten copy is written again from the other.

A node that lost both copies comes back empty, but only while a leader that lists it as a member answers.
"""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from node_group import Group, Journal, until

from dledger import Node
from dledger.errors import LostDirectoryError
from dledger.replica.start.boot import accept_loss
from dledger.store.disk import OsDisk
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import Identity, read_identity, write_identity
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.scan import header_at
from dledger.store.segments import DIRECTORY, list_positions, segment_path
from dledger.store.slots import SLOT_SPACING_BYTES, SlotFile
from dledger.store.snapshots import SnapshotStore
from dledger.store.verify import verify
from dledger_base.loop_guard import excepted

MARK, HARD_STATE, RESET = "raft/mark", "raft/hardstate", "raft/reset"
IDENTITY, IDENTITY_COPY = "identity.json", "identity.copy.json"
IN_THE_META, IN_THE_LAST_CHUNK, IN_THE_FOOTER = 30, -26, -3


pytestmark = pytest.mark.usefixtures("soon_replaced")


def flip(path: Path, byte: int | None) -> None:
    """Flip one bit of a file, or remove it."""
    if byte is None:
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x04
    path.write_bytes(data)


def rot_slots(path: Path, *numbers: int) -> None:
    for number in numbers:
        flip(path, number * SLOT_SPACING_BYTES + 22)


def rot_mark(home: Path) -> None:
    rot_slots(home / MARK, 0, 1)


def rot_hard_state(home: Path) -> None:
    rot_slots(home / HARD_STATE, 0, 1)


def rot_identity(home: Path) -> None:
    for name in (IDENTITY, IDENTITY_COPY):
        path = home / name
        flip(path, path.read_bytes().index(b'"incarnation"') + 20)


def lose_identity(home: Path) -> None:
    for name in (IDENTITY, IDENTITY_COPY):
        (home / name).unlink()


def rot_snapshots(home: Path) -> None:
    for path in (home / "snapshots").iterdir():
        flip(path, IN_THE_LAST_CHUNK)


def rot_heads_of_snapshots(home: Path) -> None:
    for path in (home / "snapshots").iterdir():
        flip(path, IN_THE_META)


def first_position(home: Path) -> int:
    """Return the position at which the log begins."""
    return list_positions(OsDisk(str(home)), DIRECTORY)[0]


def lose_first_segment(home: Path) -> None:
    """Remove everything that names the log's first entry."""
    first = first_position(home)
    shutil.rmtree(home / "snapshots")
    (home / "index" / f"{first:020d}").unlink()
    with (home / segment_path(first)).open("r+b") as segment:
        segment.write(bytes(64))


def rot_reset(home: Path) -> None:
    """Make the intent of a reset unreadable, so that the snapshot that was to replace the log is not known."""
    (home / RESET).write_bytes(b"\xc1")


def set_mark(home: Path, change: Callable[[MarkValue], MarkValue]) -> None:
    with excepted("the node is down"):
        mark, value = DurableMark.open(OsDisk(str(home)))
        assert value is not None
        mark.lower_and_sync(change(value))
        mark.close()


def contradict_mark(home: Path) -> None:
    """Put another entry's chain crc into the durable mark."""
    set_mark(home, lambda value: replace(value, chain=value.chain ^ 1))


def raise_mark(home: Path) -> None:
    """Raise the durable mark above the end of the log."""
    first = first_position(home)
    set_mark(home, lambda value: replace(value, position=first, index=value.index + 1000))


LOSSES = [rot_mark, rot_hard_state, rot_identity, lose_identity, rot_snapshots, rot_heads_of_snapshots]


async def trimmed(group: Group, **changes: object) -> None:
    """Start a group, and trim every node's log to its only snapshot."""
    await group.start(**changes)
    await group.append_until_trimmable(1)
    position = group.trim_candidates()[-1]
    assert (await group.leader()).trim(position)
    await until(lambda: all(node.first_position == position for node in group.nodes.values()), "all have trimmed")
    await until(lambda: all(begins_at(group.home(node_id), position) for node_id in group.nodes), "the files are gone")


def begins_at(home: Path, position: int) -> bool:
    """Return whether all files below a position are gone."""
    snapshots = [int(path.name) for path in (home / "snapshots").iterdir()]
    segments = [int(path.name) for path in (home / "commitlog").iterdir() if path.name.isdigit()]
    return snapshots == [position] == [min(segments)]


def incarnation(group: Group, node_id: str) -> str:
    return next(voter.incarnation for voter in group.nodes[node_id].membership.voters if voter.node_id == node_id)


def is_whole(group: Group) -> bool:
    """Return whether the group has three voters and all of them run."""
    running = {node.replica.me for node in group.nodes.values()}
    return all(set(node.membership.voters) == running for node in group.nodes.values())


def read_log(group: Group, node_id: str) -> list[tuple[str, bytes]]:
    """Return the content of the segments that hold entries, without the unused space at the end."""
    disk = OsDisk(str(group.home(node_id)))
    starts = [
        start for start in list_positions(disk, DIRECTORY) if header_at(disk.open(segment_path(start)), start, start)
    ]
    paths = [group.home(node_id) / segment_path(start) for start in starts]
    return [(path.name, path.read_bytes().rstrip(b"\0")) for path in paths]


class Starting:
    """Node whose start may have to wait."""

    def __init__(self, group: Group, node_id: str) -> None:
        self.machine = group.machines[node_id] = Journal()
        self.node = Node(group.config(node_id), self.machine)
        self.task = asyncio.create_task(self.node.start())

    async def waits(self) -> str:
        await until(lambda: self.node.waits_for is not None or self.task.done(), "a start that waits")
        text = self.node.waits_for
        assert text is not None, self.task
        return text

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_node_that_lost_something_comes_back_from_its_peers(group: Group, lose: Callable[[Path], None]):
    await trimmed(group)
    victim = await group.follower()
    before = incarnation(group, victim)
    await group.stop(victim)
    lose(group.home(victim))
    await group.start(victim)
    assert group.nodes[victim].replica.me.incarnation != before
    await until(partial(is_whole, group), "the node is a voter again")
    await group.append(5)
    await group.agrees()
    assert (group.home(victim) / "aside-0" / "commitlog").is_dir()
    await group.ends_equal_and_whole()


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_node_that_lost_something_waits_while_no_leader_answers(group: Group, lose: Callable[[Path], None]):
    await trimmed(group)
    victim = await group.follower()
    await group.stop()
    lose(group.home(victim))
    log = read_log(group, victim)
    starting = Starting(group, victim)
    try:
        other = next(node_id for node_id in group.ids if node_id != victim)
        await group.start(other)
        await starting.waits()
        answer = f"{other} knows no leader"
        await until(lambda: starting.task.done() or answer in (starting.node.waits_for or ""), "the other answered")
        assert not starting.task.done(), "it came back without a leader"
        assert answer in await starting.waits()
        assert not (group.home(victim) / "aside-0").exists()
        assert read_log(group, victim) == log
        assert not group.nodes[other].is_ready, "who waits does not vote"
        third = next(node_id for node_id in group.ids if node_id not in (victim, other))
        await group.start(third)
        await starting.task
        group.nodes[victim] = starting.node
        await until(partial(is_whole, group), "the node is a voter again")
        await group.agrees()
    finally:
        await starting.cancel()


@pytest.mark.parametrize("lose", [rot_mark, rot_hard_state, rot_snapshots])
async def test_a_removed_node_that_lost_something_waits_although_a_leader_answers(
    group: Group, lose: Callable[[Path], None]
):
    """Its log may have messages of another group, or be the copy that an operator looks for. It stays as it is."""
    await trimmed(group)
    victim = await group.follower()
    others = [node_id for node_id in group.ids if node_id != victim]
    await group.stop()
    for node_id in others:
        peers = {peer: address for peer, address in group.addresses.items() if peer in others and peer != node_id}
        await group.start(node_id, peers=peers)
    leader = await group.leader()
    leader.remove(victim)
    await until(lambda: all(node.membership.find(victim) is None for node in group.nodes.values()), "it is removed")
    lose(group.home(victim))
    log = read_log(group, victim)
    starting = Starting(group, victim)
    try:
        await starting.waits()
        answer = "does not list this node"
        await until(lambda: starting.task.done() or answer in (starting.node.waits_for or ""), "the leader answered")
        assert not starting.task.done(), "it came back although no leader lists it"
        assert not (group.home(victim) / "aside-0").exists()
        assert read_log(group, victim) == log
        assert all(node.membership.find(victim) is None for node in group.nodes.values())
    finally:
        await starting.cancel()


async def test_a_removed_node_that_the_others_files_name_is_listed_again_and_comes_back_empty(group: Group):
    """A leader adds every node of its file that connects. Then it lists the node that asks."""
    await trimmed(group)
    victim = await group.follower()
    await group.stop(victim)
    (await group.leader()).remove(victim)
    await until(lambda: all(node.membership.find(victim) is None for node in group.nodes.values()), "it is removed")
    rot_mark(group.home(victim))
    await group.start(victim)
    assert (group.home(victim) / "aside-0" / "commitlog").is_dir()
    await until(partial(is_whole, group), "the node is a voter again")
    await group.agrees()


@pytest.mark.parametrize(
    ("lose", "file", "remedy"),
    [
        (rot_mark, MARK, "dledger node recover --accept-loss"),
        (rot_hard_state, HARD_STATE, "dledger node recover --accept-loss"),
        (rot_identity, IDENTITY, "Put back identity.json"),
        (lose_identity, IDENTITY, "Put back identity.json"),
        (rot_snapshots, "snapshots/", "Put back a copy of that file"),
        (lose_first_segment, "commitlog/", "Put back copies of the files that are lost"),
        (contradict_mark, MARK, "delete its raft/mark and run 'dledger node recover --accept-loss'"),
        (raise_mark, MARK, "delete its raft/mark and run 'dledger node recover --accept-loss'"),
        (rot_reset, RESET, "delete this node's raft/reset"),
    ],
)
async def test_the_only_voter_of_a_group_refuses_a_lossy_start_with_a_remedy(
    tmp_path: Path, lose: Callable[[Path], None], file: str, remedy: str
):
    group = Group(tmp_path, count=1)
    await trimmed(group)
    await group.stop()
    home = group.home("n0")
    lose(home)
    for _ in range(2):
        with pytest.raises(LostDirectoryError, match="group's only voter") as raised:
            await group.start("n0")
        assert file in str(raised.value)
        assert remedy in str(raised.value)
        assert ("that file" in str(raised.value)) == (lose is rot_snapshots), "what names no file has other advice"
        assert "empty the directory" not in str(raised.value), "it may hold the last copy"
        assert not (home / "aside-0").exists()


async def test_an_operator_lets_a_node_go_on_with_a_log_that_its_mark_contradicts(tmp_path: Path):
    group = Group(tmp_path, count=1)
    await trimmed(group)
    count = group.machines["n0"].count
    await group.stop()
    home = group.home("n0")
    contradict_mark(home)
    with pytest.raises(LostDirectoryError, match="delete its raft/mark"):
        await group.start("n0")
    (home / MARK).unlink()
    with excepted("the node is down"):
        accept_loss(OsDisk(str(home)))
    await group.start("n0")
    await until(lambda: group.machines["n0"].count == count, "the log is applied")
    await group.append(5)
    await group.stop()


async def test_a_founder_learns_from_learners_that_no_other_node_votes(tmp_path: Path):
    """The members of the group name the voters. Other nodes in the configuration do not count."""
    group = Group(tmp_path, count=1)
    address = Group(tmp_path / "others", count=1).addresses["n0"]
    await group.start_with(5)
    await group.stop()
    rot_mark(group.home("n0"))
    home = tmp_path / "n1"
    home.mkdir()
    founder = read_identity(OsDisk(str(group.home("n0"))))
    assert founder is not None
    write_identity(OsDisk(str(home)), Identity(1, "c", "g", "n1", "b" * 32, founder.segment_bytes, founder.initial))
    config = group.config("n0")
    others = replace(config, node_id="n1", data_dir=home, bind=address, peers={"n0": group.addresses["n0"]})
    async with Node(others, Journal()):
        with pytest.raises(LostDirectoryError, match="group's only voter"):
            await Node(replace(config, peers={"n1": address}), Journal()).start()


@pytest.mark.parametrize("lose", LOSSES)
async def test_two_of_three_wait_for_an_operator(group: Group, lose: Callable[[Path], None]):
    await trimmed(group)
    await group.stop()
    for node_id in ("n0", "n1"):
        lose(group.home(node_id))
    starting = [Starting(group, node_id) for node_id in ("n0", "n1")]
    try:
        await group.start("n2")
        for mine, other in zip(starting, ("n1", "n0"), strict=True):
            await mine.waits()
            await until(lambda mine=mine, other=other: f"{other} waits as well" in (mine.node.waits_for or ""))
            await until(lambda mine=mine: "n2 knows no leader" in (mine.node.waits_for or ""))
            text = await mine.waits()
            assert "If no leader can be elected" in text
            assert not mine.task.done()
        assert not group.leaders
        assert not (group.home("n0") / "aside-0").exists()
    finally:
        for each in starting:
            await each.cancel()


@pytest.mark.parametrize("lose", [rot_mark, rot_hard_state])
async def test_an_operator_can_accept_the_losses_of_two_of_three_nodes(group: Group, lose: Callable[[Path], None]):
    await trimmed(group)
    before = {node_id: incarnation(group, node_id) for node_id in group.ids}
    digest = group.machines["n0"].digest()
    await group.settled()
    await group.stop()
    for node_id in ("n0", "n1"):
        lose(group.home(node_id))
        with excepted("the node is down"):
            accept_loss(OsDisk(str(group.home(node_id))))
    await group.start()
    await group.settled()
    assert digest in {group.machines[node_id].digest() for node_id in group.ids}
    assert {node_id: incarnation(group, node_id) for node_id in group.ids} == before
    await group.append(5)
    await group.settled()
    await group.ends_equal_and_whole()
    await group.start()
    await group.settled()


async def test_a_loss_is_not_accepted_for_a_node_without_a_log(group: Group):
    """With an accepted loss, this empty node could help to elect another empty node."""
    await group.start()
    await group.append(5)
    await group.stop()
    home = group.home("n0")
    for name in ("raft", "commitlog", "index", "snapshots"):
        (home / name).rename(home.parent / name)
    with excepted("the node is down"):
        accept_loss(OsDisk(str(home)))
    starting = Starting(group, "n0")
    await starting.waits()
    await starting.cancel()


async def test_an_operator_gives_nodes_a_copy_of_a_whole_nodes_log(group: Group):
    """The operator's instructions work if the only snapshots of two nodes have rotted."""
    await trimmed(group)
    await group.settled()
    count = group.machines["n0"].count
    await group.stop()
    for node_id in ("n0", "n1"):
        home = group.home(node_id)
        rot_snapshots(home)
        for name in ("commitlog", "index", "snapshots"):
            shutil.rmtree(home / name)
            shutil.copytree(group.home("n2") / name, home / name)
        shutil.copy(group.home("n2") / MARK, home / MARK)
    await group.start()
    await group.settled()
    assert group.machines["n0"].count == count
    await group.ends_equal_and_whole()


ROTTEN = {
    "all, and the log reaches back": (2, None, None, IN_THE_LAST_CHUNK),
    "the newest": (3, 0, -1, IN_THE_LAST_CHUNK),
    "the meta of the first": (3, 0, 0, IN_THE_META),
    "the footer of the first": (3, 0, 0, IN_THE_FOOTER),
    "the first is gone": (3, 0, 0, None),
}
"""Number of snapshots, the one to which the log is trimmed, the one that is lost (None: all), and the rotten byte."""


@pytest.mark.parametrize(("count", "first", "rotten", "byte"), ROTTEN.values(), ids=ROTTEN)
async def test_a_log_whose_first_snapshot_is_lost_loses_nothing_if_a_later_one_is_whole(
    group: Group, count: int, first: int | None, rotten: int | None, byte: int | None
):
    """Nor does a log lose anything whose newest snapshot rotted, or that reaches back to its beginning."""
    await group.start()
    await group.append_until_trimmable(count)
    oldest = 0
    if first is not None:
        oldest = group.trim_candidates()[first]
        await group.trim(oldest)
    await group.settled()
    victim = await group.follower()
    before = incarnation(group, victim)
    await group.stop(victim)
    paths = sorted((group.home(victim) / "snapshots").iterdir())
    for path in paths if rotten is None else [paths[rotten]]:
        flip(path, byte)
    await group.start(victim)
    await group.agrees()
    assert group.nodes[victim].replica.me.incarnation == before
    assert group.nodes[victim].first_position == oldest
    await until(lambda: group.nodes[victim].status().rotten_snapshots == 0, "its snapshots are whole again")
    await group.ends_equal_and_whole()
    assert {first_position(group.home(node_id)) for node_id in group.ids} == {oldest}


@pytest.mark.parametrize("byte", [IN_THE_META, None])
async def test_a_node_without_peers_keeps_its_log_if_its_first_snapshot_is_lost(tmp_path: Path, byte: int | None):
    async with Group(tmp_path, count=1) as group:
        await group.append_until_trimmable(3)
        oldest = group.trim_candidates()[0]
        await group.trim(oldest)
        await group.stop()
        kept = group.metas("n0")
        flip(group.home("n0") / "snapshots" / f"{oldest:020d}", byte)
        await group.start()
        await group.append(1)
        assert group.nodes["n0"].first_position == oldest
    assert group.metas("n0")[: len(kept)] == kept


def copies_are_whole(group: Group, node_id: str) -> bool:
    disk = OsDisk(str(group.home(node_id)))
    node = group.nodes[node_id]
    for path in (MARK, HARD_STATE):
        slots = SlotFile.open(disk, path)
        assert slots is not None
        whole = len(slots.read()) == 2
        slots.close()
        if not whole:
            return False
    files = [group.home(node_id) / name for name in (IDENTITY, IDENTITY_COPY)]
    identities = {file.read_bytes() for file in files if file.exists()}
    mine = node.replica.own_group.directory
    return all(file.exists() for file in files) and len(identities) == 1 and read_identity(disk) == mine


ONE_COPY = {
    "mark 0": lambda home: rot_slots(home / MARK, 0),
    "mark 1": lambda home: rot_slots(home / MARK, 1),
    "votes 0": lambda home: rot_slots(home / HARD_STATE, 0),
    "votes 1": lambda home: rot_slots(home / HARD_STATE, 1),
    "identity": lambda home: flip(home / IDENTITY, 60),
    "identity's copy": lambda home: flip(home / IDENTITY_COPY, 60),
    "identity is gone": lambda home: (home / IDENTITY).unlink(),
}


@pytest.mark.parametrize("rot", ONE_COPY.values(), ids=ONE_COPY.keys())
async def test_a_copy_that_rotted_while_a_node_was_down_is_rewritten(group: Group, rot: Callable[[Path], object]):
    await group.start_with(5)
    before = incarnation(group, "n0")
    await group.stop("n0")
    rot(group.home("n0"))
    await group.start("n0")
    assert group.nodes["n0"].replica.me.incarnation == before
    await group.append(5)
    await group.settled()
    await until(partial(copies_are_whole, group, "n0"))
    assert group.same_state()


@pytest.mark.parametrize("rot", ONE_COPY.values(), ids=ONE_COPY.keys())
async def test_a_copy_that_rots_while_a_node_runs_is_rewritten(group: Group, rot: Callable[[Path], object]):
    await group.start_with(5, scrub_interval_ms=0)
    promises = group.nodes["n0"].replica.upkeep.promises
    for _ in range(20):  # a sync under way may have rewritten a copy of the mark before the scrub looks
        rot(group.home("n0"))
        await until(partial(copies_are_whole, group, "n0"), "two whole copies")
        if promises.rewritten:
            break
    assert promises.rewritten, "the scrub writes what no sync has written"
    assert copies_are_whole(group, "n0")
    assert group.nodes["n0"].status().failure is None


@pytest.mark.parametrize("rot", [rot_mark, rot_hard_state, rot_identity])
async def test_a_running_node_rewrites_both_rotten_copies_of_its_promises(group: Group, rot: Callable[[Path], None]):
    await group.start_with(5, scrub_interval_ms=0)
    rewritten = group.nodes["n0"].replica.upkeep.promises.rewritten
    rot(group.home("n0"))
    # A sync under way may have rewritten one copy of the mark.
    await until(lambda: group.nodes["n0"].replica.upkeep.promises.rewritten > rewritten, "a copy that is written anew")
    await until(lambda: copies_are_whole(group, "n0"), "two whole copies")
    before = incarnation(group, "n0")
    await group.stop("n0")
    await group.start("n0")
    assert group.nodes["n0"].replica.me.incarnation == before


@pytest.mark.parametrize("byte", [1, IN_THE_META, IN_THE_LAST_CHUNK, IN_THE_FOOTER])
async def test_a_snapshot_that_rots_while_a_node_runs_is_replaced_by_a_peers(group: Group, byte: int):
    await trimmed(group, scrub_interval_ms=0)
    victim = group.nodes["n0"]
    [path] = (group.home("n0") / "snapshots").iterdir()
    flip(path, byte)
    await until(lambda: victim.replica.upkeep.snapshots.replaced == 1, "a peer's snapshot")
    assert victim.status().rotten_snapshots == 0
    store = SnapshotStore.open_readonly(OsDisk(str(group.home("n0"))))
    assert [meta.position for meta in store.list()] == [int(path.name)]
    store.verify(store.list()[0])
    await group.stop()
    await group.start()
    await group.agrees()
    await group.ends_equal_and_whole()


async def test_a_rotten_snapshot_without_another_copy_is_not_trimmed_to(tmp_path: Path):
    async with Group(tmp_path, count=1, scrub_interval_ms=0) as group:
        await group.append_until_trimmable(1)
        node = group.nodes["n0"]
        position = node.trim_candidates()[-1]
        flip(group.home("n0") / "snapshots" / f"{position:020d}", IN_THE_LAST_CHUNK)
        await until(lambda: node.status().rotten_snapshots == 1)
        assert position not in node.trim_candidates()
        assert not node.trim(position)
        assert node.status().failure is None
        while not node.trim_candidates():
            await group.append(20)
        assert node.trim(node.trim_candidates()[-1])
        await until(lambda: node.status().rotten_snapshots == 0, "it lies below the log now")
        assert [int(path.name) for path in (group.home("n0") / "snapshots").iterdir()] == [node.first_position]
    assert verify(str(group.home("n0"))).problems == []


async def test_a_log_is_not_trimmed_to_a_snapshot_that_rotted_since_it_was_written(group: Group):
    """A trim checks the snapshot that becomes the only one, without waiting for the scrub."""
    await group.start()
    await group.append_until_trimmable(2)
    await group.settled()
    victim = await group.follower()
    node, newest = group.nodes[victim], group.trim_candidates()[-1]
    flip(group.home(victim) / "snapshots" / f"{newest:020d}", IN_THE_LAST_CHUNK)
    await group.trim(newest)  # the victim trims to a peer's snapshot
    assert node.status().rotten_snapshots == 0
    await group.ends_equal_and_whole()


async def test_a_mark_with_a_rotten_slot_keeps_acknowledged_entries(tmp_path: Path):
    """The newest slot rots. The older slot covers less than was acknowledged, and the log behind it is whole."""
    group = Group(tmp_path)
    await group.start_with(20)
    await group.stop()
    disk = OsDisk(str(group.home("n0")))
    mark, value = DurableMark.open(disk)
    mark.close()
    assert value is not None
    hard_state, state = HardStateFile.open(disk)
    hard_state.close()
    for number in (0, 1):
        rot_slots(group.home("n0") / MARK, number)
        await group.start("n0")
        assert group.nodes["n0"].replica.store.last_index >= value.index
        assert group.nodes["n0"].replica.engine.term >= (state.term if state else 0)
        await group.stop("n0")
