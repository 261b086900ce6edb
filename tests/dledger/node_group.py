"""Real nodes of one group in one process, on loopback, each in a directory of its own."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dledger import CommittedEntry, Leadership, Membership, Node, NodeConfig, ReplicaId, SnapshotMeta
from dledger.checksum import crc32
from dledger.consensus.engine import EngineKind
from dledger.engines.native import NATIVE
from dledger.errors import LogFullError, NotLeaderError, OutcomeUnknownError
from dledger.statemachine import Restore
from dledger.store.disk import OsDisk
from dledger.store.identity import Identity, write_identity
from dledger.store.verify import VerifyReport, inspect, verify
from dledger.testing.ports import free_ports
from dledger.types import EntryMeta

SECRET = b"a secret of the whole group"
SEGMENT_BYTES = 64 << 10
DEADLINE_S = 30.0
"""Far longer than anything here takes: a test that reaches it has failed."""


class Journal:
    """A state machine that counts entries and keeps a running checksum of their bytes."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.lost: list[object] = []
        self.views_end: int | None = None
        """Where derived views end; None: they are whole."""
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
    """A life of a simulated node that runs a journal: its log holds what the test puts there, and nothing else."""

    def __init__(self, *_: object) -> None:
        self.machine = Journal()

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self, done: Callable[[], None]) -> None:
        done()


async def until(condition: Callable[[], bool], what: str = "a condition") -> None:
    """Wait until something holds; fails after `DEADLINE_S`."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - conditions over several nodes have no event to wait for
            await asyncio.sleep(0.005)


def has_trimmed(node: Node, position: int) -> bool:
    """Whether a node's log begins at a position, and the files below are gone."""
    return node.first_position == position and not node.replica.store.leftovers.due


class Group:
    """`count` voters, made as an operator's tool makes them: one membership in every identity file."""

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
                Identity(1, "c", "g", voter.node_id, voter.incarnation, SEGMENT_BYTES, membership, engine.name),
            )

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

    async def stop(self, *ids: str) -> None:
        """Stop some nodes, or all."""
        for node_id in ids or tuple(self.nodes):
            await self.nodes.pop(node_id).stop()

    @property
    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_ready]

    async def leader(self) -> Node:
        """The leader, once there is one that takes proposals."""
        await until(lambda: bool(self.leaders), "a leader")
        return max(self.leaders, key=lambda node: node.term)

    async def append(self, count: int, size: int = 1000) -> None:
        """Append entries of one unit each, through whoever leads: one whose disk is slow hands over.

        Nobody else appends meanwhile: whether an entry is there whose leader was lost is told by how many there are.
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
        """How many entries with records there are."""
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
        """Append until every running node can trim to so many positions; returns how many entries that took.

        A mark is passed over where the snapshot before it is still being written, so this waits for each.
        """
        count = 0
        while len(self.trim_candidates()) < positions:
            await self.append(50)
            count += 50
            await self.settled()
            await until(self._are_snapshots_written, "the snapshots that were begun")
        return count

    def _are_snapshots_written(self) -> bool:
        return all(
            len(node.replica.snapshots.list()) >= self.machines[node_id].snapshots
            for node_id, node in self.nodes.items()
        )

    async def settled(self) -> None:
        """Wait until every running node has applied the same."""
        await self._count()
        index = max(node.applied_index for node in self.nodes.values())
        await until(lambda: all(node.applied_index >= index for node in self.nodes.values()), "all have applied")

    def trim_candidates(self) -> list[int]:
        """Positions that every running node can trim to, ascending."""
        return sorted(set.intersection(*(set(node.trim_candidates()) for node in self.nodes.values())))

    def same_state(self) -> bool:
        return len({self.machines[node_id].digest() for node_id in self.nodes}) == 1

    def metas(self, node_id: str) -> list[EntryMeta]:
        """The entries in a node's directory."""
        return list(inspect(str(self.home(node_id))))

    def flip_bit(self, node_id: str, position: int) -> None:
        """One bit of a node's log rots."""
        path = self.home(node_id) / "commitlog" / f"{position - position % SEGMENT_BYTES:020d}"
        with path.open("r+b") as file:
            file.seek(position % SEGMENT_BYTES)
            byte = file.read(1)[0]
            file.seek(position % SEGMENT_BYTES)
            file.write(bytes([byte ^ 0x10]))

    def verified(self) -> list[VerifyReport]:
        """Reports of every directory, once all nodes are stopped."""
        assert not self.nodes
        return [verify(str(self.home(node_id))) for node_id in self.ids]
