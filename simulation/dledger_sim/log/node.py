"""Log of a simulated node, with the interface that a service uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from dledger.environment import COLD, called_back
from dledger.errors import TrimmedError
from dledger.log import Log
from dledger.net.requests import Handler, RequestChannel
from dledger.net.transport import Buffer
from dledger.replica.clocks import voter_clocks
from dledger.replica.describe import describe
from dledger.replica.replica import Replica
from dledger.replica.status import NodeStatus
from dledger.store.disk import DiskSpace
from dledger.store.log import SegmentInfo
from dledger.store.ranges import EntryRun, LogCut, RecordSpan, find_cuts, last_records, read_run, record_spans
from dledger.store.reader import OpenFile
from dledger.types import Membership, WallClock
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.network import SimTransport

T = TypeVar("T")


class RunningReplica(Protocol):
    """Life of a node. Its replica exists once the service does."""

    @property
    def replica(self) -> Replica: ...

    @property
    def environment(self) -> SimEnvironment: ...

    @property
    def transport(self) -> SimTransport: ...


class SimulatedNode(Log):
    """Log of a running replica, equivalent to `dledger.node.Node`."""

    def __init__(self, life: RunningReplica) -> None:
        self._life = life

    @property
    def is_ready(self) -> bool:
        return self._life.replica.is_ready

    @property
    def first_position(self) -> int:
        return self._life.replica.store.first_position

    @property
    def segment_bytes(self) -> int:
        return self._life.replica.store.segment_bytes

    @property
    def end_position(self) -> int:
        return self._life.replica.leading.end_position

    @property
    def durable_position(self) -> int:
        return self._life.replica.durable_position

    @property
    def membership(self) -> Membership:
        return self._life.replica.engine.membership

    @property
    def disk_space(self) -> DiskSpace | None:
        return self._life.replica.housekeeper.disk.space

    @property
    def reserve_left(self) -> float:
        return self._life.replica.store.reserve_left

    def stage(
        self,
        size: int,
        fill: Callable[[int], Sequence[Buffer]] | None,
        *,
        commands: bytes | bytearray = b"",
        context: object = None,
        privileged: bool = False,
    ) -> int:
        return self._life.replica.stage(size, fill, commands, context, privileged=privileged)

    def read_nowait(self, position: int, size: int) -> bytes | None:
        return self._life.replica.store.read_nowait(position, size)

    def read_runs_nowait(self, runs: Sequence[tuple[int, int]]) -> list[bytes] | None:
        return self._life.replica.store.read_runs_nowait(runs)

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        return self._life.replica.store.with_open_file(position, use)

    async def read(self, position: int, size: int) -> bytes:
        if position < self.first_position:
            raise TrimmedError(f"position {position} is below the first kept one, {self.first_position}")
        return await self._cold(partial(self._life.replica.store.read, position, size))

    def read_blocking(self, position: int, size: int) -> bytes:
        return self._life.replica.store.read(position, size)

    def read_failed(self, position: int) -> None:
        self._life.replica.repairer.read_failed(position)

    async def cuts(self, start: int, end: int, slice_bytes: int) -> list[LogCut]:
        return await self._cold(partial(find_cuts, self._life.replica.store, start, end, slice_bytes))

    async def read_run(self, start: int, end: int, max_bytes: int) -> EntryRun:
        return await self._cold(partial(read_run, self._life.replica.store, start, end, max_bytes))

    async def record_spans(self, start: int, end: int) -> list[RecordSpan]:
        return await self._cold(partial(record_spans, self._life.replica.store, start, end))

    def last_records(self, start: int, end: int) -> list[bytes]:
        return last_records(self._life.replica.store, start, end)

    def segment_written_ms(self, start: int) -> int:
        return self._life.replica.store.segment_written_ms(start)

    async def _cold(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self._life.environment.run_blocking(COLD, work, done))

    @property
    def group_identity(self) -> str:
        return self._life.replica.own_group.directory.group_id or ""

    def adopt(self, group_id: str) -> None:
        self._life.replica.own_group.adopt(group_id)

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        self._life.replica.read_index(callback)

    def broadcast_commit(self) -> None:
        self._life.replica.broadcast_commit()

    def segments(self) -> list[SegmentInfo]:
        return self._life.replica.store.segments()

    def trim_candidates(self) -> list[int]:
        first = self.first_position
        return [meta.position for meta in self._life.replica.snapshots.list() if meta.position > first]

    def trim(self, before_position: int) -> bool:
        return self._life.replica.propose_trim(before_position)

    def hand_over(self, node_id: str) -> bool:
        member = self.membership.find(node_id)
        return member is not None and self._life.replica.transfer(member)

    def watch_disk(self, watermark: Callable[[], float], kept_free: Callable[[], int]) -> None:
        self._life.replica.housekeeper.disk.follow(watermark, kept_free)

    def on_trimmed(self, hook: Callable[[int], None]) -> None:
        self._life.replica.on_trimmed.append(hook)

    def on_handover(self, hook: Callable[[], None]) -> None:
        self._life.replica.leading.on_handover.append(hook)

    def status(self) -> NodeStatus:
        return describe(self._life.replica)

    def voter_clocks(self) -> list[WallClock | None]:
        replica, environment = self._life.replica, self._life.environment
        return voter_clocks(replica.engine, replica.me, environment.now(), environment.wall_ms())

    def request_channel(self, number: int, handler: Handler) -> RequestChannel:
        return RequestChannel(self._life.transport, number, handler, self._life.environment)
