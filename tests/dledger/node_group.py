"""Real nodes of one group in one process, on loopback, each with its own directory."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from dledger import CommittedEntry, Leadership, Membership, Node, NodeConfig, ReplicaId, SnapshotMeta
from dledger.consensus.engine import EngineKind
from dledger.engines.named import NATIVE
from dledger.errors import LogFullError, NotLeaderError, OutcomeUnknownError
from dledger.statemachine import Restore
from dledger.store.disk import OsDisk
from dledger.store.identity import Identity, write_identity
from dledger.store.verify import VerifyReport, compare, inspect, verify
from dledger.testing.ports import free_ports
from dledger.types import EntryMeta
from dledger_base.checksum import crc32
from dledger_base.group_identity import GroupIdentity

SECRET = b"a secret of the whole group"
SEGMENT_BYTES = 64 << 10
DEADLINE_S = 30.0
"""Time limit of a wait, far above the time that any test needs."""


class Journal:
    """State machine that counts entries and keeps a running checksum of their bytes."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.lost: list[object] = []
        self.views_end: int | None = None
        """Position at which derived views end. None means that they are complete."""
        self.snapshots = 0
        self.rebuilt: list[int] = []
        self.applied: list[int] = []
        self.restored_from: SnapshotMeta | None = None
        self.leadership: Leadership | None = None
        self.digest_error = 0

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            self.count += bool(entry.records)
            self.total = crc32(entry.records, self.total)
            self.applied.append(entry.index)

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        self.rebuilt.extend(entry.index for entry in entries)

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        self.lost.extend(contexts)

    def on_leadership(self, leadership: Leadership) -> None:
        self.leadership = leadership

    def snapshot(self) -> Iterator[bytes]:
        self.snapshots += 1
        return iter([f"{self.count} {self.total}".encode()])

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        text = b"".join(chunks).decode()
        count, total = map(int, text.split()) if text else (0, 0)
        return partial(self._restore, meta, count, total)

    def _restore(self, meta: SnapshotMeta | None, count: int, total: int) -> int:
        self.restored_from = meta
        self.count, self.total = count, total
        if meta is None:
            return 0
        return meta.position if self.views_end is None else min(self.views_end, meta.position)

    def digest(self) -> int:
        return (self.count << 32 | self.total) + self.digest_error


class JournalService:
    """Service of a simulated node that runs a `Journal`. Its log holds only the entries that the test appends."""

    def __init__(self, *_: object) -> None:
        self.machine = Journal()

    def start(self) -> None:
        """Do nothing."""

    def stop(self, done: Callable[[], None]) -> None:
        done()


async def until(condition: Callable[[], bool], what: str = "a condition") -> None:
    """Wait until a condition holds, and fail after `DEADLINE_S`."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - conditions over several nodes have no event to wait for
            await asyncio.sleep(0.005)


def alone(directory: Path, **changes: object) -> NodeConfig:
    """Return the configuration of a node that founds a group of its own."""
    config = NodeConfig("c", "g", "n0", directory, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    return replace(config, **changes)


@asynccontextmanager
async def leading(directory: Path, machine: Journal | None = None, **changes: object) -> AsyncIterator[Node]:
    """Run a node without peers, which takes proposals."""
    async with Node(alone(directory, **changes), machine or Journal()) as node:
        await until(lambda: node.is_ready, "a leader")
        yield node


def has_trimmed(node: Node, position: int) -> bool:
    """Return whether a node's log begins at a position and the files below are removed."""
    return node.first_position == position and not node.replica.store.leftovers.due


class Group:
    """Group of `count` voters, founded as an operator's tool does: every identity file holds the same membership."""

    def __init__(self, directory: Path, count: int = 3, *, engine: EngineKind = NATIVE, **options: object) -> None:
        self.directory = directory
        self.ids = [f"n{number}" for number in range(count)]
        ports = free_ports(count)
        self.addresses = {node_id: ("127.0.0.1", port) for node_id, port in zip(self.ids, ports, strict=True)}
        self.options: dict[str, object] = {
            "segment_bytes": SEGMENT_BYTES,
            "heartbeat_ms": 50,
            "election_min_ms": 250,
            "election_max_ms": 500,
            "snapshot_interval_ms": 0,
            **options,
        }
        self.engine = engine
        self.nodes: dict[str, Node] = {}
        self.machines: dict[str, Journal] = {}
        membership = Membership(tuple(ReplicaId(node_id, uuid.uuid4().hex) for node_id in self.ids))
        for voter in membership.voters:
            home = self.home(voter.node_id)
            home.mkdir(parents=True)
            write_identity(
                OsDisk(str(home)),
                Identity(
                    1,
                    "c",
                    "g",
                    voter.node_id,
                    voter.incarnation,
                    SEGMENT_BYTES,
                    membership,
                    engine.name,
                    str(GroupIdentity.founded_by(membership.voters[0].incarnation)),
                ),
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def home(self, node_id: str) -> Path:
        return self.directory / node_id

    def config(self, node_id: str, **changes: object) -> NodeConfig:
        peers = {peer: address for peer, address in self.addresses.items() if peer != node_id}
        config = NodeConfig("c", "g", node_id, self.home(node_id), SECRET, self.addresses[node_id], peers=peers)
        return replace(config, **self.options, **changes)

    async def start(self, *ids: str, **changes: object) -> None:
        """Start some nodes, or all."""
        for node_id in ids or self.ids:
            self.machines[node_id] = Journal()
            self.nodes[node_id] = Node(self.config(node_id, **changes), self.machines[node_id], engine=self.engine)
            await self.nodes[node_id].start()

    async def start_with(self, count: int, **changes: object) -> Node:
        """Start all nodes, append entries, wait until all have applied them, and return the leader."""
        await self.start(**changes)
        await self.append(count)
        await self.settled()
        return await self.leader()

    async def stop(self, *ids: str) -> None:
        """Stop some nodes, or all."""
        for node_id in ids or tuple(self.nodes):
            await self.nodes.pop(node_id).stop()

    @property
    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_ready]

    async def leader(self) -> Node:
        """Wait for a leader that takes proposals, and return it."""
        await until(lambda: bool(self.leaders), "a leader")
        return max(self.leaders, key=lambda node: node.term)

    async def follower(self) -> str:
        """Return the id of a running follower."""
        leader = await self.leader()
        return next(node_id for node_id, node in self.nodes.items() if node is not leader)

    async def append(self, count: int, size: int = 1000) -> None:
        """Append entries of one unit each through the present leader. A leader with a slow disk may hand over.

        Only one caller may append at a time. If a leader is lost, the number of entries shows whether its last append
        was stored.
        """
        before, number = await self._count(), 0
        async with asyncio.timeout(DEADLINE_S):
            while number < count:
                leader = await self.leader()
                try:
                    await leader.append(bytes([number % 251]) * size)
                except NotLeaderError:  # nothing was appended
                    await asyncio.sleep(0.005)
                    continue
                except OutcomeUnknownError:
                    if await self._count() == before + number:
                        continue
                number += 1

    async def _count(self) -> int:
        """Return the number of entries with records."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                leader = await self.leader()
                try:
                    await leader.read_barrier()
                except NotLeaderError:
                    await asyncio.sleep(0.005)
                else:
                    return self.machines[leader.config.node_id].count

    async def append_until_trimmable(self, positions: int) -> int:
        """Append until every running node can trim to `positions` positions, and return the number of entries.

        A snapshot mark is skipped while the snapshot before it is still being written, so this waits for each snapshot.
        """
        count = 0
        while len(self.trim_candidates()) < positions:
            await self.append(50)
            count += 50
            await self.settled()
            await until(self._are_snapshots_written, "the snapshots that were begun")
        return count

    async def trim_without_a_follower(self) -> tuple[str, Node, int]:
        """Stop a follower and let the others trim. Return its id, the leader, and the position of the first snapshot.

        The others keep a later snapshot as well.
        """
        await self.append(10)
        await self.settled()
        leader = await self.leader()
        late = next(node_id for node_id in self.ids if self.nodes[node_id] is not leader)
        await self.stop(late)
        await self.append_until_trimmable(2)
        position = self.trim_candidates()[0]
        leader = await self.leader()
        await self.trim(position)
        return late, leader, position

    async def trim(self, position: int) -> None:
        """Trim every running node to a snapshot."""
        assert (await self.leader()).trim(position)
        await until(lambda: all(has_trimmed(node, position) for node in self.nodes.values()), "all have trimmed")

    def _are_snapshots_written(self) -> bool:
        return all(
            len(node.replica.snapshots.list()) >= self.machines[node_id].snapshots
            for node_id, node in self.nodes.items()
        )

    async def settled(self) -> None:
        """Wait until every running node has applied the same entries."""
        await self._count()
        index = max(node.applied_index for node in self.nodes.values())
        await until(lambda: all(node.applied_index >= index for node in self.nodes.values()), "all have applied")

    async def agrees(self) -> None:
        """Wait until every running node has applied the same entries, and check that their states are equal."""
        await self.settled()
        assert self.same_state()

    def trim_candidates(self) -> list[int]:
        """Return the positions that every running node can trim to, ascending."""
        return sorted(set.intersection(*(set(node.trim_candidates()) for node in self.nodes.values())))

    def same_state(self) -> bool:
        return len({self.machines[node_id].digest() for node_id in self.nodes}) == 1

    def metas(self, node_id: str) -> list[EntryMeta]:
        """Return the entries in a node's directory."""
        return list(inspect(str(self.home(node_id))))

    def flip_bit(self, node_id: str, position: int) -> None:
        """Flip one bit of a node's log."""
        path = self.home(node_id) / "commitlog" / f"{position - position % SEGMENT_BYTES:020d}"
        with path.open("r+b") as file:
            file.seek(position % SEGMENT_BYTES)
            byte = file.read(1)[0]
            file.seek(position % SEGMENT_BYTES)
            file.write(bytes([byte ^ 0x10]))

    def verified(self) -> list[VerifyReport]:
        """Return the reports of every directory. All nodes must be stopped."""
        assert not self.nodes
        return [verify(str(self.home(node_id))) for node_id in self.ids]

    async def ends_equal_and_whole(self) -> None:
        """Stop all nodes, and check that their logs are equal and without damage."""
        await self.stop()
        reports = self.verified()
        assert [report.problems for report in reports] == [[]] * len(self.ids)
        assert compare(reports).equal
