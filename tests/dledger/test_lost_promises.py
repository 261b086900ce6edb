"""Promises of a replica that rot: one copy is written anew, and a node that lost both comes back empty, but only while
a leader that lists it answers."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from node_group import Group, Journal, has_trimmed, until

from dledger import Node
from dledger.errors import LostDirectoryError
from dledger.loop_guard import excepted
from dledger.replica import joining
from dledger.replica.boot import accept_loss
from dledger.store.disk import OsDisk
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import Identity, read_identity, write_identity
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.scan import header_at
from dledger.store.segments import DIRECTORY, list_positions, segment_path
from dledger.store.slots import SLOT_SPACING_BYTES, SlotFile
from dledger.store.snapshots import SnapshotStore
from dledger.store.verify import compare, verify

MARK, HARD_STATE, RESET = "raft/mark", "raft/hardstate", "raft/reset"
IDENTITY, IDENTITY_COPY = "identity.json", "identity.copy.json"
IN_THE_META, IN_THE_LAST_CHUNK, IN_THE_FOOTER = 30, -26, -3


@pytest.fixture(autouse=True)
def soon_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "REPLACE_AFTER_S", 0.5)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    await group.stop()


def flip(path: Path, byte: int) -> None:
    """One bit of a file rots."""
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
    """Where the log begins."""
    return list_positions(OsDisk(str(home)), DIRECTORY)[0]


def lose_first_segment(home: Path) -> None:
    """Nothing is left that tells which entry the log begins with."""
    first = first_position(home)
    shutil.rmtree(home / "snapshots")
    (home / "index" / f"{first:020d}").unlink()
    with (home / segment_path(first)).open("r+b") as segment:
        segment.write(bytes(64))


def rot_reset(home: Path) -> None:
    """A snapshot was to replace the log, and which one cannot be read."""
    (home / RESET).write_bytes(b"\xc1")


def set_mark(home: Path, change: Callable[[MarkValue], MarkValue]) -> None:
    with excepted("the node is down"):
        mark, value = DurableMark.open(OsDisk(str(home)))
        assert value is not None
        mark.lower_and_sync(change(value))
        mark.close()


def contradict_mark(home: Path) -> None:
    """The log has another entry where it is marked as durable."""
    set_mark(home, lambda value: replace(value, chain=value.chain ^ 1))


def raise_mark(home: Path) -> None:
    """The log ends below what is marked as durable."""
    first = first_position(home)
    set_mark(home, lambda value: replace(value, position=first, index=value.index + 1000))


LOSSES = [rot_mark, rot_hard_state, rot_identity, lose_identity, rot_snapshots, rot_heads_of_snapshots]


async def trimmed(group: Group) -> None:
    """Have everybody's log begin at its only snapshot."""
    await group.append_until_trimmable(1)
    position = group.trim_candidates()[-1]
    assert (await group.leader()).trim(position)
    await until(lambda: all(node.first_position == position for node in group.nodes.values()), "all have trimmed")
    await until(lambda: all(begins_at(group.home(node_id), position) for node_id in group.nodes), "the files are gone")


def begins_at(home: Path, position: int) -> bool:
    """Whether nothing is left of what a trim to a position has dropped."""
    snapshots = [int(path.name) for path in (home / "snapshots").iterdir()]
    segments = [int(path.name) for path in (home / "commitlog").iterdir() if path.name.isdigit()]
    return snapshots == [position] == [min(segments)]


async def follower(group: Group) -> str:
    leader = await group.leader()
    return next(node_id for node_id, node in group.nodes.items() if node is not leader)


def incarnation(group: Group, node_id: str) -> str:
    return next(voter.incarnation for voter in group.nodes[node_id].membership.voters if voter.node_id == node_id)


def is_whole(group: Group) -> bool:
    """Three voters, all of them the ones that run."""
    running = {node.replica.me for node in group.nodes.values()}
    return all(set(node.membership.voters) == running for node in group.nodes.values())


def assert_equal_and_whole(group: Group) -> None:
    reports = group.verified()
    assert [report.problems for report in reports] == [[], [], []]
    assert compare(reports).equal


def read_log(group: Group, node_id: str) -> list[tuple[str, bytes]]:
    """The segments that hold entries, without the space behind the end."""
    disk = OsDisk(str(group.home(node_id)))
    starts = [
        start for start in list_positions(disk, DIRECTORY) if header_at(disk.open(segment_path(start)), start, start)
    ]
    paths = [group.home(node_id) / segment_path(start) for start in starts]
    return [(path.name, path.read_bytes().rstrip(b"\0")) for path in paths]


class Starting:
    """A node whose start may wait."""

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
    await group.start()
    await trimmed(group)
    victim = await follower(group)
    before = incarnation(group, victim)
    await group.stop(victim)
    lose(group.home(victim))
    await group.start(victim)
    assert group.nodes[victim].replica.me.incarnation != before
    await until(partial(is_whole, group), "the node is a voter again")
    await group.append(5)
    await group.settled()
    assert group.same_state()
    assert (group.home(victim) / "aside-0" / "commitlog").is_dir()
    await group.stop()
    assert_equal_and_whole(group)


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_node_that_lost_something_waits_while_no_leader_answers(group: Group, lose: Callable[[Path], None]):
    await group.start()
    await trimmed(group)
    victim = await follower(group)
    await group.stop()
    lose(group.home(victim))
    log = read_log(group, victim)
    starting = Starting(group, victim)
    try:
        other = next(node_id for node_id in group.ids if node_id != victim)
        await group.start(other)
        await starting.waits()
        await until(lambda: f"{other} knows no leader" in (starting.node.waits_for or ""), "the other node answered")
        assert f"{other} knows no leader" in await starting.waits()
        assert not (group.home(victim) / "aside-0").exists()
        assert read_log(group, victim) == log
        assert not group.nodes[other].is_ready, "who waits does not vote"
        third = next(node_id for node_id in group.ids if node_id not in (victim, other))
        await group.start(third)
        await starting.task
        group.nodes[victim] = starting.node
        await until(partial(is_whole, group), "the node is a voter again")
        await group.settled()
        assert group.same_state()
    finally:
        await starting.cancel()


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
async def test_a_groups_only_voter_ends_and_says_what_is_lost_and_what_can_be_done(
    tmp_path: Path, lose: Callable[[Path], None], file: str, remedy: str
):
    group = Group(tmp_path, count=1)
    await group.start()
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
    await group.start()
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


async def test_a_founder_whose_peers_are_learners_is_told_by_them_that_nobody_else_votes(tmp_path: Path):
    """Whoever else the configuration names: the group's members say who decides."""
    group = Group(tmp_path, count=1)
    learner = Group(tmp_path / "others", count=1)
    address = learner.addresses["n0"]
    await group.start()
    await group.append(5)
    await group.stop()
    rot_mark(group.home("n0"))
    home = tmp_path / "n1"
    home.mkdir()
    founder = read_identity(OsDisk(str(group.home("n0"))))
    assert founder is not None
    write_identity(OsDisk(str(home)), Identity(1, "c", "g", "n1", "b" * 32, founder.segment_bytes, founder.initial))
    config = group.config("n0")
    other = Node(
        replace(config, node_id="n1", data_dir=home, bind=address, peers={"n0": group.addresses["n0"]}), Journal()
    )
    await other.start()
    try:
        with pytest.raises(LostDirectoryError, match="group's only voter"):
            await Node(replace(config, peers={"n1": address}), Journal()).start()
    finally:
        await other.stop()


@pytest.mark.parametrize("lose", LOSSES)
async def test_two_of_three_wait_for_an_operator(group: Group, lose: Callable[[Path], None]):
    await group.start()
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
async def test_an_operator_lets_two_of_three_go_on_with_their_logs(group: Group, lose: Callable[[Path], None]):
    await group.start()
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
    await group.stop()
    assert_equal_and_whole(group)
    await group.start()
    await group.settled()


async def test_a_loss_is_not_accepted_for_a_node_without_a_log(group: Group):
    """It would help to elect another such."""
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
    """What the text says can be done where the only snapshots of two nodes have rotted."""
    await group.start()
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
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_rotten_snapshot_costs_nothing_where_the_log_reaches_back(group: Group):
    await group.start()
    await group.append_until_trimmable(2)
    await group.settled()
    victim = await follower(group)
    before = incarnation(group, victim)
    await group.stop(victim)
    rot_snapshots(group.home(victim))
    await group.start(victim)
    await group.settled()
    assert group.nodes[victim].replica.me.incarnation == before
    assert group.same_state()
    await until(lambda: group.nodes[victim].status().rotten_snapshots == 0, "its snapshots are whole again")
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_node_begins_at_an_older_snapshot_if_the_newest_has_rotted(group: Group):
    await group.start()
    await group.append_until_trimmable(3)
    oldest = group.trim_candidates()[0]
    assert (await group.leader()).trim(oldest)
    await until(lambda: all(has_trimmed(node, oldest) for node in group.nodes.values()), "all have trimmed")
    await group.settled()
    victim = await follower(group)
    before = incarnation(group, victim)
    await group.stop(victim)
    newest = max((group.home(victim) / "snapshots").iterdir())
    flip(newest, IN_THE_LAST_CHUNK)
    await group.start(victim)
    await group.settled()
    assert group.nodes[victim].replica.me.incarnation == before
    assert group.same_state()
    await until(lambda: group.nodes[victim].status().rotten_snapshots == 0, "its snapshots are whole again")
    await group.stop()
    assert_equal_and_whole(group)


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
    return (
        all(file.exists() for file in files) and len(identities) == 1 and read_identity(disk) == node.replica.identity
    )


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
async def test_a_copy_that_rotted_while_a_node_was_down_is_written_anew(group: Group, rot: Callable[[Path], object]):
    await group.start()
    await group.append(5)
    await group.settled()
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
async def test_a_copy_that_rots_while_a_node_runs_is_written_anew(group: Group, rot: Callable[[Path], object]):
    await group.start(scrub_interval_ms=0)
    await group.append(5)
    await group.settled()
    promises = group.nodes["n0"].replica.upkeep.promises
    for _ in range(20):  # a sync that was under way may have written a copy of the mark anew before the scrub looks
        rot(group.home("n0"))
        await until(partial(copies_are_whole, group, "n0"), "two whole copies")
        if promises.rewritten:
            break
    assert promises.rewritten, "the scrub writes what no sync has written"
    assert copies_are_whole(group, "n0")
    assert group.nodes["n0"].status().failure is None


@pytest.mark.parametrize("rot", [rot_mark, rot_hard_state, rot_identity])
async def test_both_copies_are_written_anew_while_memory_knows_what_they_said(
    group: Group, rot: Callable[[Path], None]
):
    await group.start(scrub_interval_ms=0)
    await group.append(5)
    await group.settled()
    rewritten = group.nodes["n0"].replica.upkeep.promises.rewritten
    rot(group.home("n0"))
    # A sync that was under way may have written one copy of the mark anew.
    await until(lambda: group.nodes["n0"].replica.upkeep.promises.rewritten > rewritten, "a copy that is written anew")
    await until(lambda: copies_are_whole(group, "n0"), "two whole copies")
    before = incarnation(group, "n0")
    await group.stop("n0")
    await group.start("n0")
    assert group.nodes["n0"].replica.me.incarnation == before


@pytest.mark.parametrize("byte", [1, IN_THE_META, IN_THE_LAST_CHUNK, IN_THE_FOOTER])
async def test_a_snapshot_that_rots_while_a_node_runs_is_replaced_by_a_peers(group: Group, byte: int):
    await group.start(scrub_interval_ms=0)
    await trimmed(group)
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
    await group.settled()
    assert group.same_state()
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_snapshot_that_no_other_node_has_is_neither_trimmed_to_nor_sent(tmp_path: Path):
    group = Group(tmp_path, count=1)
    await group.start(scrub_interval_ms=0)
    try:
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
    finally:
        await group.stop()
    assert verify(str(group.home("n0"))).problems == []


async def test_a_log_is_not_trimmed_to_a_snapshot_that_rotted_since_it_was_written(group: Group):
    """Its rot is found when it is to become the only one, whenever the scrub would have come to it."""
    await group.start()
    await group.append_until_trimmable(2)
    await group.settled()
    victim = await follower(group)
    node, newest = group.nodes[victim], group.trim_candidates()[-1]
    flip(group.home(victim) / "snapshots" / f"{newest:020d}", IN_THE_LAST_CHUNK)
    leader = await group.leader()
    assert leader.trim(newest)
    await until(lambda: has_trimmed(leader, newest), "the leader has trimmed")
    await until(lambda: has_trimmed(node, newest), "the other one has trimmed, to a peer's snapshot")
    assert node.status().rotten_snapshots == 0
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_mark_that_is_read_only_in_part_keeps_what_was_acknowledged(tmp_path: Path):
    """The newest slot rots: the older one says less than was acknowledged, and the log behind it is whole."""
    group = Group(tmp_path)
    await group.start()
    await group.append(20)
    await group.settled()
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
