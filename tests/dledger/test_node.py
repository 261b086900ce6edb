"""Promises of a node to whoever embeds it, with real files, sockets and threads."""

import asyncio
import itertools
import logging
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node_group import DEADLINE_S, SECRET, SEGMENT_BYTES, Group, Journal, has_trimmed, until

from dledger import Node, NodeConfig
from dledger.errors import (
    BusyError,
    ConfigError,
    IdentityError,
    LogError,
    LogFullError,
    NotLeaderError,
    OutcomeUnknownError,
    StorageError,
    TooLargeError,
    TrimmedError,
)
from dledger.format import HEADER_BYTES
from dledger.net.settings import LinkLimits
from dledger.store.disk import OsDisk
from dledger.store.snapshots import SnapshotStore
from dledger.store.verify import compare, inspect
from dledger.types import EntryKind


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    await group.stop()


def alone(directory: Path, **changes: object) -> NodeConfig:
    settings: dict[str, object] = {"segment_bytes": SEGMENT_BYTES, "bootstrap": True, **changes}
    return NodeConfig("c", "g", "n0", directory, SECRET, **settings)


# ---------------------------------------------------------------- appending


async def test_one_node_needs_no_others(tmp_path: Path):
    machine = Journal()
    async with Node(alone(tmp_path), machine) as node:
        await until(lambda: node.is_ready)
        position = await node.append(b"hello")
        assert await node.read(position, 5) == b"hello"
        assert machine.count == 1
        assert node.leader_id == "n0"
    assert node.disk_space is None, "a timer of a service may still ask"
    machine = Journal()
    async with Node(alone(tmp_path), machine) as node:
        await until(lambda: machine.count == 1)


async def test_links_have_as_much_patience_as_elections(tmp_path: Path):
    """Else a group whose elections were slowed down for a slow network could still open no link over it."""
    config = alone(tmp_path, election_max_ms=5000)
    async with Node(config, Journal()) as node:
        limits = node._links._limits
        assert (limits.dial_timeout_s, limits.handshake_timeout_s, limits.dead_peer_timeout_s) == (5.0, 10.0, 10.0)
    assert LinkLimits.for_elections(1000) == LinkLimits.for_elections(50) == LinkLimits()


async def test_an_append_stands_at_its_position_on_every_node(group: Group):
    await group.start()
    leader = await group.leader()
    positions = [await leader.append(bytes([number]) * 500) for number in range(20)]
    assert positions == sorted(positions)
    await group.settled()
    for node in group.nodes.values():
        assert [(await node.read(position, 1))[0] for position in positions] == list(range(20))
    assert group.same_state()


async def test_appends_of_one_turn_share_an_entry(group: Group):
    await group.start()
    leader = await group.leader()
    before = leader.replica.store.last_index
    positions = await asyncio.gather(*(leader.append(b"x" * 10) for _ in range(50)))
    assert [later - earlier for earlier, later in itertools.pairwise(positions)] == [10] * 49
    assert leader.replica.store.last_index == before + 1


async def test_a_follower_says_who_leads(group: Group):
    await group.start()
    leader = await group.leader()
    follower = next(node for node in group.nodes.values() if node is not leader)
    await until(lambda: follower.leader_id is not None)
    with pytest.raises(NotLeaderError, match=f"the leader is {leader.config.node_id}") as caught:
        await follower.append(b"x")
    assert caught.value.leader_id == leader.config.node_id
    with pytest.raises(NotLeaderError):
        await follower.read_barrier()


async def test_without_a_majority_nothing_is_acknowledged_and_room_runs_out(tmp_path: Path):
    group = Group(tmp_path, max_uncommitted_bytes=1 << 20)
    try:
        await group.start()
        leader = await group.leader()
        await group.stop(*(node_id for node_id in group.ids if node_id != leader.config.node_id))
        pending = [asyncio.ensure_future(leader.append(b"x" * 30_000)) for _ in range(60)]
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {OutcomeUnknownError, BusyError, NotLeaderError}
        assert OutcomeUnknownError in {type(outcome) for outcome in outcomes}
        assert not leader.is_ready
    finally:
        await group.stop()


async def test_a_unit_must_fit_a_segment(tmp_path: Path):
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
        with pytest.raises(TooLargeError):
            await node.append(bytes(SEGMENT_BYTES))
        await node.append(b"and life goes on")


async def test_what_a_deposed_leader_had_staged_is_handed_back(group: Group):
    await group.start()
    leader = await group.leader()
    machine = group.machines[leader.config.node_id]
    await group.stop(*(node_id for node_id in group.ids if node_id != leader.config.node_id))
    leader.stage(3, lambda position: (b"abc",), context="mine")
    await until(lambda: machine.lost == ["mine"])
    assert machine.leadership is not None
    assert not machine.leadership.is_leader


async def test_views_are_rebuilt_from_where_they_end(tmp_path: Path):
    machine = Journal()
    node = Node(alone(tmp_path, snapshot_interval_ms=0), machine)
    await node.start()
    await until(lambda: node.is_ready)
    for _ in range(150):
        await node.append(bytes(1000))
        await until(lambda: len(node.replica.snapshots.list()) == machine.snapshots, "each snapshot, none passed over")
    assert len(node.trim_candidates()) == 2
    last_index = node.applied_index
    await node.stop()
    metas = list(inspect(str(tmp_path)))
    snapshot = SnapshotStore.open(OsDisk(str(tmp_path))).list()[-1]
    last_of_first_segment = next(meta for meta in reversed(metas) if meta.position < SEGMENT_BYTES)
    for views_end, first in (
        (metas[10].position, 10),
        (metas[10].end, 11),
        (last_of_first_segment.end, last_of_first_segment.index + 1),
    ):
        machine = Journal()
        machine.views_end = views_end
        async with Node(alone(tmp_path, snapshot_interval_ms=0), machine) as node:
            await until(lambda node=node: node.applied_index >= last_index)
            groups = [meta.index for meta in metas if meta.kind == EntryKind.GROUP]
            assert machine.rebuilt == [index for index in groups if first <= index <= snapshot.last_index]
            later = [index for index in groups if index > snapshot.last_index]
            assert machine.applied[: len(later)] == later


# ---------------------------------------------------------------- leadership


async def test_the_others_take_over_and_lose_nothing(group: Group):
    await group.start()
    await group.append(30)
    first = await group.leader()
    term = first.term
    await group.stop(first.config.node_id)
    second = await group.leader()
    assert second.term > term
    await group.append(30)
    await group.start(first.config.node_id)
    await group.settled()
    assert {machine.count for machine in group.machines.values()} == {60}
    assert group.same_state()


async def test_a_transfer_under_load_loses_nothing_that_was_acknowledged(group: Group):
    await group.start()
    leader = await group.leader()
    acknowledged: dict[int, bytes] = {}
    numbers = itertools.count()
    go_on = True

    async def load() -> None:
        while go_on:
            body = next(numbers).to_bytes(4) * 500
            try:
                acknowledged[await (await group.leader()).append(body)] = body
            except (NotLeaderError, OutcomeUnknownError):
                await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(load()) for _ in range(8)]
    await until(lambda: len(acknowledged) > 100)
    to = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
    await until(lambda: group.nodes[to].leader_id is not None)
    transferred = False
    async with asyncio.timeout(DEADLINE_S):
        while not transferred:  # a target whose disk is slow does not win
            with suppress(NotLeaderError):
                transferred = await (await group.leader()).transfer_leadership(to)
    await until(lambda: group.nodes[to].is_ready)
    so_far = len(acknowledged)
    await until(lambda: len(acknowledged) > so_far + 100)
    go_on = False
    await asyncio.gather(*tasks)
    await group.settled()
    assert group.same_state()
    for position, body in acknowledged.items():
        for node in group.nodes.values():
            assert await node.read(position, len(body)) == body


def stage_until_refused(node: Node) -> None:
    while True:
        node.stage(30_000, lambda _: (b"x" * 30_000,))


async def test_what_a_service_holds_back_goes_ahead_of_a_handover_even_into_a_busy_log(tmp_path: Path):
    group = Group(tmp_path, max_uncommitted_bytes=1 << 20)
    try:
        await group.start()
        leader = await group.leader()
        heir = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
        await until(lambda: group.nodes[heir].leader_id is not None)
        held_back = [b"the last words"]
        stood: list[int] = []
        leader.on_handover(lambda: stood.append(leader.stage(14, lambda _: (held_back.pop(),))))
        with pytest.raises(BusyError):
            stage_until_refused(leader)
        assert leader.replica.transfer(leader.membership.find(heir))
        assert not held_back
        with pytest.raises(NotLeaderError):
            leader.stage(1, lambda _: (b"x",))
        await until(lambda: group.nodes[heir].is_ready)
        assert await group.nodes[heir].read(stood[0], 14) == b"the last words"
    finally:
        await group.stop()


async def test_who_does_not_lead_has_nothing_to_hand_over(group: Group):
    await group.start()
    leader = await group.leader()
    follower = next(node for node in group.nodes.values() if node is not leader)
    follower.on_handover(lambda: pytest.fail("there is no handover"))
    assert not follower.replica.transfer(None)


async def test_a_transfer_that_another_node_wins_has_not_reached_its_target(group: Group, monkeypatch):
    await group.start()
    leader = await group.leader()
    to, winner = (node_id for node_id in group.ids if node_id != leader.config.node_id)
    await until(lambda: group.nodes[to].leader_id is not None and group.nodes[winner].leader_id is not None)
    transfer, member = leader.replica.transfer, leader.membership.find(winner)
    monkeypatch.setattr(leader.replica, "transfer", lambda _: transfer(member))
    assert not await leader.transfer_leadership(to)
    assert (await group.leader()).config.node_id == winner


async def test_a_transfer_to_nobody_is_an_error(group: Group):
    await group.start()
    leader = await group.leader()
    with pytest.raises(LogError, match="members are"):
        await leader.transfer_leadership("n9")


async def test_a_transfer_to_the_leader_is_done_already(group: Group):
    await group.start()
    leader = await group.leader()
    term = leader.term
    assert await leader.transfer_leadership(leader.config.node_id)
    assert leader.term == term


async def test_the_last_voter_is_not_removed(tmp_path: Path):
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
        with pytest.raises(LogError, match="n0 is the only voter of g"):
            node.remove("n0")
        assert await node.append(b"it goes on")


async def test_all_may_stop_and_come_back(group: Group):
    await group.start()
    await group.append(100)
    await group.settled()
    await group.stop()
    assert compare(group.verified()).equal
    await group.start()
    await group.append(10)
    await group.settled()
    assert {machine.count for machine in group.machines.values()} == {110}
    assert group.same_state()


# ---------------------------------------------------------------- retention and joining


async def test_a_message_may_carry_entries_for_more_segments_than_space_is_reserved_in(tmp_path: Path):
    group = Group(tmp_path, snapshot_interval_ms=3_600_000)
    await group.start()
    try:
        leader = await group.leader()
        late = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
        await group.settled()
        await group.stop(late)
        half = bytes((SEGMENT_BYTES - HEADER_BYTES) // 2)
        for _ in range(8):  # a run of entries reaches into the next segment where they fill one exactly
            await asyncio.gather(leader.append(half), leader.append(half))
        segments = [meta.position // SEGMENT_BYTES for meta in group.metas(leader.config.node_id)[-8:]]
        assert segments == list(range(1, 9))
        await group.start(late)
        await group.settled()
        assert group.metas(late) == group.metas(leader.config.node_id)
    finally:
        await group.stop()


async def test_snapshots_let_the_log_be_trimmed_on_every_node(group: Group):
    await group.start()
    trimmed: list[int] = []
    for node in group.nodes.values():
        node.on_trimmed(trimmed.append)
    count = await group.append_until_trimmable(2)
    leader = await group.leader()
    position = group.trim_candidates()[-1]
    assert position % SEGMENT_BYTES == 0
    assert not leader.trim(position + 1), "only a snapshot's position can be trimmed to"
    assert leader.trim(position)
    await until(lambda: all(has_trimmed(node, position) for node in group.nodes.values()))
    assert trimmed == [position] * 3
    with pytest.raises(TrimmedError):
        await leader.read(0, 10)
    await group.settled()
    await group.stop()
    await group.start()
    await group.settled()
    assert {machine.count for machine in group.machines.values()} == {count}
    assert group.same_state()


async def test_a_snapshot_that_cannot_be_taken_ends_the_node(tmp_path: Path):
    class Mute(Journal):
        def snapshot(self) -> Iterator[bytes]:
            yield b"some"
            raise StorageError("the rest cannot be read")

    async with Node(alone(tmp_path, snapshot_interval_ms=0), Mute()) as node:
        await until(lambda: node.is_ready)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            failed = tasks.create_task(node.wait_failed())
            with suppress(LogError):
                while not failed.done():
                    await node.append(bytes(1000))
        assert "the rest cannot be read" in str(failed.result())


async def test_a_follower_behind_the_trimmed_log_gets_a_snapshot(group: Group):
    await group.start()
    await group.append(5)
    await group.settled()
    leader = await group.leader()
    behind = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
    await group.stop(behind)
    await group.append(250)
    leader = await group.leader()
    await until(lambda: bool(leader.trim_candidates()))
    position = leader.trim_candidates()[-1]
    leader.trim(position)
    await until(lambda: has_trimmed(leader, position))
    await group.start(behind)
    await group.settled()
    restored = group.machines[behind].restored_from
    assert restored is not None
    assert restored.position == position
    assert group.nodes[behind].first_position == position
    assert group.same_state()
    await group.stop()
    assert compare(group.verified()).equal


async def test_a_wiped_node_comes_back_as_a_learner_and_votes_once_promoted(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.replica.joining.REPLACE_AFTER_S", 1.0)
    await group.start()
    await group.append(50)
    leader = await group.leader()
    wiped = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
    before = leader.membership.find(wiped)
    await group.stop(wiped)
    shutil.rmtree(group.home(wiped))
    await group.start(wiped)
    node = group.nodes[wiped]
    assert not node.status().voter
    learned: list[str] = []

    def promoted() -> bool:
        learned.extend(leader.status().learners)
        return wiped in leader.status().voters and leader.membership.find(wiped) != before

    await until(promoted)
    assert wiped in learned, "it was a learner first"
    await until(lambda: node.status().voter)
    await group.settled()
    assert group.same_state()


async def test_a_replica_whose_state_differs_stops_and_is_installed_anew(group: Group):
    await group.start()
    await group.append(5)
    await group.settled()
    leader = await group.leader()
    odd = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
    group.machines[odd].digest_error = 1
    await group.append(150)
    async with asyncio.timeout(20):
        failure = await group.nodes[odd].wait_failed()
    assert "state digest" in str(failure)
    incarnation = group.nodes[odd].status().incarnation
    await group.stop(odd)
    assert (group.home(odd) / "aside-0" / "commitlog").is_dir()
    await group.start(odd)
    assert group.nodes[odd].status().incarnation != incarnation
    assert not group.nodes[odd].status().voter


async def test_writes_that_two_who_differ_have_stopped_go_on_once_a_third_voter_makes_a_majority(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.replica.joining.REPLACE_AFTER_S", 1.0)
    await group.start()
    await group.append(5)
    await group.settled()
    leader = await group.leader()
    odd, third = (node_id for node_id in group.ids if node_id != leader.config.node_id)
    await group.stop(third)
    leader.remove(third)
    await until(lambda: len(leader.membership.voters) == 2)
    group.machines[odd].digest_error = 1
    with suppress(LogFullError):
        await group.append(100)
    # Each tells its newest digest a few times a second: they meet once a mark is the newest for long enough.
    await until(lambda: "states differ" in (group.nodes[leader.config.node_id].status().refusal or ""), "a refusal")
    with pytest.raises(LogFullError, match="states differ"):
        await group.append(1)
    await group.start(third)
    await until(lambda: any(len(node.membership.voters) == 3 for node in group.nodes.values()), "the third one votes")

    written = False
    async with asyncio.timeout(DEADLINE_S):
        while not written:
            try:
                await (await group.leader()).append(b"x")
                written = True
            except LogError:
                await asyncio.sleep(0.005)


# ---------------------------------------------------------------- what a node refuses


async def test_an_address_in_use_is_a_configuration_error(tmp_path: Path):
    async with Node(alone(tmp_path / "one"), Journal()) as node:
        other = Node(alone(tmp_path / "two", bind=node.address), Journal())
        with pytest.raises(ConfigError, match=f"cannot listen for peers on 127.0.0.1:{node.address[1]}"):
            await other.start()
    async with Node(alone(tmp_path / "two"), Journal()):
        pass  # the failed start left nothing locked


async def test_a_node_with_another_secret_stays_outside(group: Group, caplog: pytest.LogCaptureFixture):
    await group.start("n0", "n1")
    await group.append(3)
    with caplog.at_level(logging.WARNING, "dledger.net.links"):
        await group.start("n2", secret=b"not the group's secret")
        await until(lambda: any("cannot link to peer" in record.getMessage() for record in caplog.records))
    await group.append(3)
    assert group.nodes["n2"].applied_index == -1
    assert group.nodes["n2"].leader_id is None


async def test_a_directory_belongs_to_its_node_and_group(tmp_path: Path):
    async with Node(alone(tmp_path), Journal()):
        pass
    for changes in ({"node_id": "n1"}, {"group": "other"}, {"cluster": "other"}, {"segment_bytes": 2 * SEGMENT_BYTES}):
        settings: dict[str, object] = {"cluster": "c", "group": "g", "node_id": "n0", "segment_bytes": SEGMENT_BYTES}
        settings |= changes
        node = Node(NodeConfig(data_dir=tmp_path, secret=SECRET, **settings), Journal())
        with pytest.raises(IdentityError, match=str(*changes.values())):
            await node.start()


async def test_a_second_process_cannot_use_the_directory(tmp_path: Path):
    async with Node(alone(tmp_path), Journal()):
        program = (
            "import sys, os\n"
            "from dledger.errors import IdentityError\n"
            "from dledger.store.identity import DirectoryLock\n"
            "try:\n    DirectoryLock.acquire(sys.argv[1], os.getpid())\n"
            "except IdentityError as error:\n    print(error)\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path), stdout=subprocess.PIPE
        )
        said, _ = await process.communicate()
        assert str(tmp_path) in said.decode()
        with pytest.raises(IdentityError):
            await Node(alone(tmp_path), Journal()).start()


async def test_a_node_without_identity_joins_only_by_invitation(tmp_path: Path):
    async with Node(alone(tmp_path, bootstrap=False), Journal()) as node:
        assert not node.status().voter
        assert node.status().voters == []
        with pytest.raises(NotLeaderError):
            await node.append(b"x")


async def test_stopping_twice_is_stopping_once(tmp_path: Path):
    node = Node(alone(tmp_path), Journal())
    await node.start()
    await node.stop()
    await node.stop()
    with pytest.raises(NotLeaderError, match="not running"):
        await node.append(b"x")
