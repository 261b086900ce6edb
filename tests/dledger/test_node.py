"""Promises of a node to the program that embeds it, with real files, sockets and threads."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node_group import DEADLINE_S, SEGMENT_BYTES, Group, Journal, alone, leading, until

from dledger import Node
from dledger.errors import (
    BusyError,
    ConfigError,
    LogError,
    LogFullError,
    NotLeaderError,
    OutcomeUnknownError,
    StorageError,
    TrimmedError,
)  # fmt: skip
from dledger.format import HEADER_BYTES
from dledger.net.settings import LinkLimits
from dledger.store.disk import OsDisk
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.store.verify import inspect
from dledger.types import EntryKind

# ---------------------------------------------------------------- appending


async def test_a_node_without_peers_serves_and_restarts(tmp_path: Path):
    machine = Journal()
    async with leading(tmp_path, machine) as node:
        position = await node.append(b"hello")
        assert await node.read(position, 5) == b"hello"
        assert machine.count == 1
        assert node.leader_id == "n0"
    assert node.disk_space is None, "a timer of a service may still ask"
    await node.stop()
    with pytest.raises(NotLeaderError, match="not running"):
        await node.append(b"x")
    machine = Journal()
    async with Node(alone(tmp_path), machine) as node:
        await until(lambda: machine.count == 1)


async def test_entries_written_during_a_mark_sync_are_synced_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, may_end, real = threading.Event(), threading.Event(), LogStore.sync_mark

    def slow(store: LogStore) -> None:
        begun.set()
        may_end.wait()
        real(store)

    async with leading(tmp_path) as node:
        monkeypatch.setattr(LogStore, "sync_mark", slow)
        try:
            await node.append(b"one")
            await until(begun.is_set)
            appending = asyncio.create_task(node.append(b"two"))
            await until(lambda: node.replica.store.last_index > node.replica.store.durable)
        finally:
            may_end.set()
        async with asyncio.timeout(DEADLINE_S):
            assert await appending > 0


async def test_links_have_as_much_patience_as_elections(tmp_path: Path):
    """Otherwise a group with long election time limits for a slow network could not open links over that network."""
    config = alone(tmp_path, election_max_ms=5000)
    async with Node(config, Journal()) as node:
        limits = node._links._limits
        assert (limits.dial_timeout_s, limits.handshake_timeout_s, limits.dead_peer_timeout_s) == (5.0, 10.0, 10.0)
    assert LinkLimits.for_elections(1000) == LinkLimits.for_elections(50) == LinkLimits()


async def test_a_follower_names_the_leader_when_it_refuses_a_write_and_hands_nothing_over(group: Group):
    leader = await group.start_with(0)
    follower = group.nodes[await group.follower()]
    with pytest.raises(NotLeaderError, match=f"the leader is {leader.config.node_id}") as caught:
        await follower.append(b"x")
    assert caught.value.leader_id == leader.config.node_id
    with pytest.raises(NotLeaderError):
        await follower.read_barrier()
    follower.on_handover(lambda: pytest.fail("there is no handover"))
    assert not follower.replica.transfer(None)


async def test_without_a_majority_nothing_is_acknowledged_and_room_runs_out(tmp_path: Path):
    async with Group(tmp_path, max_uncommitted_bytes=1 << 20) as group:
        leader = await group.leader()
        await group.stop(*(node_id for node_id in group.ids if node_id != leader.config.node_id))
        pending = [asyncio.ensure_future(leader.append(b"x" * 30_000)) for _ in range(60)]
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {OutcomeUnknownError, BusyError, NotLeaderError}
        assert OutcomeUnknownError in {type(outcome) for outcome in outcomes}
        assert not leader.is_ready


async def test_staged_units_of_a_deposed_leader_are_handed_back(group: Group):
    leader = await group.start_with(0)
    machine = group.machines[leader.config.node_id]
    await group.stop(*(node_id for node_id in group.ids if node_id != leader.config.node_id))
    leader.stage(3, lambda position: (b"abc",), context="mine")
    await until(lambda: machine.lost == ["mine"])
    assert machine.leadership is not None
    assert not machine.leadership.is_leader


async def test_views_are_rebuilt_from_their_end(tmp_path: Path):
    machine = Journal()
    async with leading(tmp_path, machine, snapshot_interval_ms=0) as node:
        for _ in range(150):
            await node.append(bytes(1000))
            await until(lambda: len(node.replica.snapshots.list()) == machine.snapshots, "each snapshot")
        assert len(node.trim_candidates()) == 2
        last_index = node.applied_index
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


async def test_a_new_leader_takes_over_without_loss_of_entries(group: Group):
    first = await group.start_with(30)
    term = first.term
    await group.stop(first.config.node_id)
    assert (await group.leader()).term > term
    await group.append(30)
    await group.start(first.config.node_id)
    await group.agrees()
    assert {machine.count for machine in group.machines.values()} == {60}


async def test_a_transfer_under_load_loses_nothing_that_was_acknowledged(group: Group):
    leader = await group.start_with(0)
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
    transferred = False
    async with asyncio.timeout(DEADLINE_S):
        while not transferred:  # a target with a slow disk may not win
            with suppress(NotLeaderError):
                transferred = await (await group.leader()).transfer_leadership(to)
    await until(lambda: group.nodes[to].is_ready)
    so_far = len(acknowledged)
    await until(lambda: len(acknowledged) > so_far + 100)
    go_on = False
    await asyncio.gather(*tasks)
    await group.agrees()
    for position, body in acknowledged.items():
        for node in group.nodes.values():
            assert await node.read(position, len(body)) == body


def stage_until_refused(node: Node) -> None:
    while True:
        node.stage(30_000, lambda _: (b"x" * 30_000,))


async def test_units_held_back_by_a_service_are_stored_before_a_handover(tmp_path: Path):
    async with Group(tmp_path, max_uncommitted_bytes=1 << 20) as group:
        leader = await group.leader()
        heir = await group.follower()
        await group.settled()
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


async def test_a_transfer_won_by_another_node_is_reported_as_failed(group: Group, monkeypatch):
    leader = await group.start_with(0)
    to, winner = (node_id for node_id in group.ids if node_id != leader.config.node_id)
    transfer, member = leader.replica.transfer, leader.membership.find(winner)
    monkeypatch.setattr(leader.replica, "transfer", lambda *_: transfer(member))
    assert not await leader.transfer_leadership(to)
    assert (await group.leader()).config.node_id == winner


async def test_a_transfer_to_an_unknown_node_is_an_error_and_to_the_leader_is_done_already(group: Group):
    leader = await group.start_with(0)
    term = leader.term
    with pytest.raises(LogError, match="members are"):
        await leader.transfer_leadership("n9")
    assert await leader.transfer_leadership(leader.config.node_id)
    assert leader.term == term


async def test_the_last_voter_is_not_removed(tmp_path: Path):
    async with leading(tmp_path) as node:
        with pytest.raises(LogError, match="n0 is the only voter of g"):
            node.remove("n0")
        assert await node.append(b"it goes on")


# ---------------------------------------------------------------- retention and joining


async def test_a_message_may_carry_entries_for_more_segments_than_space_is_reserved_in(tmp_path: Path):
    async with Group(tmp_path, snapshot_interval_ms=3_600_000) as group:
        leader = await group.leader()
        late = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
        await group.settled()
        await group.stop(late)
        half = bytes((SEGMENT_BYTES - HEADER_BYTES) // 2)
        for _ in range(8):  # an append reaches into the next segment if entries fill the current one exactly
            await asyncio.gather(leader.append(half), leader.append(half))
        segments = [meta.position // SEGMENT_BYTES for meta in group.metas(leader.config.node_id)[-8:]]
        assert segments == list(range(1, 9))
        await group.start(late)
        await group.settled()
        assert group.metas(late) == group.metas(leader.config.node_id)


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
    await group.trim(position)
    assert trimmed == [position] * 3
    with pytest.raises(TrimmedError):
        await leader.read(0, 10)
    await group.stop()
    await group.start()
    await group.agrees()
    assert {machine.count for machine in group.machines.values()} == {count}


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


async def test_a_replica_whose_state_differs_stops_and_is_installed_anew(group: Group):
    leader = await group.start_with(5)
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


async def test_writes_stopped_by_two_differing_voters_resume_with_a_third_voter(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.replica.upkeep.members.REPLACE_AFTER_S", 1.0)
    leader = await group.start_with(5)
    odd, third = (node_id for node_id in group.ids if node_id != leader.config.node_id)
    await group.stop(third)
    leader.remove(third)
    await until(lambda: len(leader.membership.voters) == 2)
    group.machines[odd].digest_error = 1
    with suppress(LogFullError):
        await group.append(100)
    # Each node sends its newest digest a few times a second. Two digests match once a mark is the newest long enough.
    await until(lambda: "states differ" in (group.nodes[leader.config.node_id].status().refusal or ""), "a refusal")
    with pytest.raises(LogFullError, match="states differ"):
        await group.append(1)
    await group.start(third)
    await until(lambda: any(len(node.membership.voters) == 3 for node in group.nodes.values()), "the third one votes")
    written = False
    async with asyncio.timeout(DEADLINE_S):
        while not written:
            with suppress(LogError):
                await (await group.leader()).append(b"x")
                written = True
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------- refusals


async def test_an_address_in_use_is_a_configuration_error(tmp_path: Path):
    async with Node(alone(tmp_path / "one"), Journal()) as node:
        other = Node(alone(tmp_path / "two", bind=node.address), Journal())
        with pytest.raises(ConfigError, match=f"cannot listen for peers on 127.0.0.1:{node.address[1]}"):
            await other.start()
    async with Node(alone(tmp_path / "two"), Journal()):
        pass  # the failed start left nothing locked


async def test_a_node_without_identity_joins_only_by_invitation(tmp_path: Path):
    async with Node(alone(tmp_path, bootstrap=False), Journal()) as node:
        assert not node.status().voter
        assert node.status().voters == []
        with pytest.raises(NotLeaderError):
            await node.append(b"x")


@pytest.mark.parametrize("data", [b"", b"\0", b"\1" * 3, b"\xff" * 40, bytes(100), b"\1" * 1000])
async def test_malformed_bytes_of_a_peer_end_no_node(group: Group, data: bytes):
    leader = await group.start_with(0)
    follower = group.nodes[await group.follower()]
    for node, peer in ((leader, follower), (follower, leader)):
        for channel in range(256):
            node.replica.on_data(peer.replica.me, channel, data)
    await group.append(3)
    assert leader.replica.failure is follower.replica.failure is None
