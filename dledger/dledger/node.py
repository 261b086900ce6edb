"""Node: a replica on this machine, which joins `Replica` to the real disk, sockets, clock and threads.

    async with Node(config, state_machine) as node:
        position = await node.append(b"hello")

All methods are for the event loop on which the node was started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from dledger.appending import Appended, AppendResolver
from dledger.config import NodeConfig
from dledger.consensus.engine import EngineKind
from dledger.engines.named import NATIVE
from dledger.environment import COLD, AsyncioEnvironment, Environment, called_back
from dledger.errors import (
    CorruptionError,
    LogError,
    NotLeaderError,
    TrimmedError,
)
from dledger.log import Log
from dledger.net.handshake import Belonging
from dledger.net.links import Links
from dledger.net.requests import Handler, RequestChannel
from dledger.net.settings import LinkCounters
from dledger.reopening import NodeDirectory, close_replica, lock_directory, make_links
from dledger.replica.clocks import voter_clocks
from dledger.replica.describe import describe
from dledger.replica.replica import Replica
from dledger.replica.status import NodeStatus
from dledger.replica.upkeep.members import promote, without
from dledger.replica.writing.leading import Leading
from dledger.statemachine import StateMachine
from dledger.store.disk import DiskSpace, OsDisk
from dledger.store.identity import DirectoryLock
from dledger.store.log import Pin, SegmentInfo
from dledger.store.ranges import EntryRun, LogCut, RecordSpan, find_cuts, last_records, read_run, record_spans
from dledger.store.reader import OpenFile
from dledger.types import Fill, Membership, Position, ReplicaId, WallClock
from dledger_base.invariants import invariant
from dledger_base.loop_guard import excepted
from dledger_base.loop_holds import PEERS, LoopHolds

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Node(Log):
    """One node of a group: its log (see `dledger.log.Log`), and the methods that run and administer it.

    `start` raises `ConfigError` (address in use, contradictory settings) or `IdentityError` (the directory belongs to
    another node). It raises `LostDirectoryError` if the directory lost promises of a group's only voter. It raises
    `CorruptionError` or `StorageError` if the directory cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        state_machine: StateMachine,
        *,
        engine: EngineKind = NATIVE,
        holds: LoopHolds | None = None,
        disk: OsDisk | None = None,
    ) -> None:
        self.config = config
        self._disk = disk
        self._holds = holds or LoopHolds()
        self._engine = engine
        self._machine = AppendResolver(state_machine)
        self._failure_event: asyncio.Event | None = None
        self._environment: AsyncioEnvironment | None = None
        self._lock: DirectoryLock | None = None
        self._directory: NodeDirectory | None = None
        self._links: Links | None = None
        self._replica: Replica | None = None
        self._leading: Leading | None = None
        """The replica's part that takes units. A write goes straight to it."""
        self._disk_limits: tuple[Callable[[], float], Callable[[], int]] | None = None

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Recover the directory, listen, and take part. Restoring the state machine continues in the background.

        If the directory lost its promises, this waits for a leader; see `waits_for`.
        """
        config, loop = self.config, asyncio.get_running_loop()
        self._lock = lock_directory(config)
        self._failure_event = asyncio.Event()
        self._environment = AsyncioEnvironment(loop, self._holds)
        self._holds.begin()
        try:
            self._directory = NodeDirectory(config, self._environment, self._engine, self._disk)
            opened = await self._directory.open()
            for note in opened.notes:
                logger.warning("event=directory_note directory=%s note=%r", config.data_dir, note)
            belonging = Belonging(opened.identity.group_id)
            self._links = make_links(
                config, opened.identity.incarnation, _Receiver(self, self._holds), self._engine, belonging
            )
            with excepted("nothing is served yet"):
                self._replica = Replica(
                    config.replica,
                    opened,
                    self._environment,
                    self._links,
                    self._machine,
                    engine=self._engine,
                    on_failure=self._on_failure,
                )
            self._leading = self._replica.leading
            belonging.lists = self._replica.own_group.lists
            if self._disk_limits is not None:
                self._replica.housekeeper.disk.follow(*self._disk_limits)
            await self._links.start()
            self._replica.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave at once, without handing over (see `transfer_leadership`). May be called twice."""
        if self._replica is not None:
            self._replica.stop()
        if self._links is not None:
            await self._links.stop()
        if self._environment is not None:
            self._environment.close()
            self._environment = None
            self._holds.end()
        replica, self._replica, self._leading = self._replica, None, None
        try:
            if replica is not None:
                close_replica(self.config, replica)
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _on_failure(self, error: BaseException) -> None:
        logger.error(
            "node=%s event=failed error=%r", self.config.node_id, error, exc_info=not isinstance(error, LogError)
        )
        if self._failure_event is not None:
            self._failure_event.set()

    async def wait_failed(self) -> BaseException:
        """Wait until this node cannot go on, and return the reason. Then stop the node; the process should exit."""
        invariant(self._failure_event is not None, "the node is started")
        if self._failure_event is not None:
            await self._failure_event.wait()
        failure = self.replica.failure
        return failure if failure is not None else LogError("the node failed")

    # ---------------------------------------------------------------- what it is

    @property
    def waits_for(self) -> str | None:
        """Reason why `start` waits for a leader, with what an operator can do; None if it does not wait."""
        return None if self._directory is None else self._directory.waits_for

    @property
    def replica(self) -> Replica:
        if self._replica is None:
            raise self._not_running()
        return self._replica

    def _not_running(self) -> NotLeaderError:
        return NotLeaderError(None, 0, f"node {self.config.node_id} is not running")

    @property
    def env(self) -> Environment:
        invariant(self._environment is not None, "the node is started")
        assert self._environment is not None
        return self._environment

    @property
    def address(self) -> tuple[str, int]:
        """Address where the node listens for peers."""
        invariant(self._links is not None, "the node is started")
        assert self._links is not None
        return self._links.address

    @property
    def role(self) -> str:
        return self.replica.engine.role.name.lower()

    @property
    def term(self) -> int:
        return self.replica.engine.term

    @property
    def leader_id(self) -> str | None:
        """Node id of the leader, if it is known."""
        leader = self.replica.engine.leader
        return None if leader is None else leader.node_id

    @property
    def is_ready(self) -> bool:
        return self._replica is not None and self._replica.is_ready

    @property
    def commit_index(self) -> int:
        return self.replica.engine.commit_index

    @property
    def applied_index(self) -> int:
        return self.replica.applied_index

    @property
    def applied_position(self) -> int:
        """End of the last applied entry."""
        return self.replica.applied_position

    @property
    def segment_bytes(self) -> int:
        return self.replica.store.segment_bytes

    @property
    def first_position(self) -> int:
        return self.replica.store.first_position

    @property
    def last_position(self) -> int:
        """Position where the log ends."""
        return self.replica.store.end_position

    @property
    def end_position(self) -> int:
        return self.replica.leading.end_position

    @property
    def durable_position(self) -> int:
        return self.replica.durable_position

    @property
    def membership(self) -> Membership:
        return self.replica.engine.membership

    @property
    def group_identity(self) -> str:
        return "" if self._replica is None else self._replica.own_group.directory.group_id or ""

    def adopt(self, group_id: str) -> None:
        if self.replica.own_group.adopt(group_id) and self._links is not None:
            self._links.adopt(group_id)

    def status(self) -> NodeStatus:
        return describe(self.replica)

    def voter_clocks(self) -> list[WallClock | None]:
        environment = self.replica.environment
        return voter_clocks(self.replica.engine, self.replica.me, environment.now(), environment.wall_ms())

    def link_counters(self) -> LinkCounters:
        """Return the counters of the links to the other nodes since this node started."""
        invariant(self._links is not None, "the node is started")
        assert self._links is not None
        return self._links.counters

    # ---------------------------------------------------------------- writing

    def stage(
        self,
        size: int,
        fill: Fill | None,
        *,
        commands: bytes | bytearray = b"",
        context: object = None,
        privileged: bool = False,
    ) -> int:
        leading = self._leading
        if leading is None:
            raise self._not_running()
        return leading.stage(size, fill, commands, context, privileged=privileged)

    @property
    def disk_space(self) -> DiskSpace | None:
        # A service's timer may ask between a stop and the next start, when the log is set aside and begun anew.
        return None if self._replica is None else self._replica.housekeeper.disk.space

    @property
    def reserve_left(self) -> float:
        return self.replica.store.reserve_left

    async def append(self, body: bytes) -> Position:
        """Append one unit, wait until it is committed and applied, and return its position.

        Raises as `stage`, and `OutcomeUnknownError` if leadership is lost meanwhile.
        """
        context = Appended(asyncio.get_running_loop().create_future())
        context.position = Position(self.stage(len(body), lambda _: (body,), context=context))
        return await context.future

    def trim(self, before_position: int) -> bool:
        return self.replica.propose_trim(before_position)

    def trim_candidates(self) -> list[int]:
        first = self.first_position
        return [meta.position for meta in self.replica.snapshots.list() if meta.position > first]

    # ---------------------------------------------------------------- reading

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        self.replica.read_index(callback)

    async def read_barrier(self) -> None:
        """Wait as `read_index` does. Raises `NotLeaderError`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        self.read_index(done)
        await future

    def broadcast_commit(self) -> None:
        self.replica.broadcast_commit()

    def read_nowait(self, position: int, size: int) -> bytes | None:
        return self.replica.store.read_nowait(position, size)

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        return self.replica.store.with_open_file(position, use)

    async def read(self, position: int, size: int) -> bytes:
        if position < self.first_position:
            raise TrimmedError(f"position {position} is below the first kept one, {self.first_position}")
        return await self._read(position, partial(self.replica.store.read, position, size))

    def read_blocking(self, position: int, size: int) -> bytes:
        return self.replica.store.read(position, size)

    def read_failed(self, position: int) -> None:
        self.replica.repairer.read_failed(position)

    async def cuts(self, start: int, end: int, slice_bytes: int) -> list[LogCut]:
        return await self._read(start, partial(find_cuts, self.replica.store, start, end, slice_bytes))

    async def read_run(self, start: int, end: int, max_bytes: int) -> EntryRun:
        return await self._read(start, partial(read_run, self.replica.store, start, end, max_bytes))

    async def record_spans(self, start: int, end: int) -> list[RecordSpan]:
        return await self._read(start, partial(record_spans, self.replica.store, start, end))

    def last_records(self, start: int, end: int) -> list[bytes]:
        return last_records(self.replica.store, start, end)

    def segment_written_ms(self, start: int) -> int:
        return self.replica.store.segment_written_ms(start)

    async def _read(self, position: int, work: Callable[[], T]) -> T:
        replica = self.replica
        try:
            return await self._read_cold(work)
        except CorruptionError:
            replica.repairer.read_failed(position)
            raise

    async def _read_cold(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self.env.run_blocking(COLD, work, done))

    async def pin(self, position: int) -> Pin:
        """Keep the segment that holds `position` readable until the pin is released. Raises as `read`."""
        work = partial(self.replica.store.pin, position)
        return await called_back(lambda done: self.env.run_blocking(COLD, work, done), unclaimed=Pin.release)

    def segments(self) -> list[SegmentInfo]:
        return self.replica.store.segments()

    def watch_disk(self, watermark: Callable[[], float], kept_free: Callable[[], int]) -> None:
        """Set the limits of the disk, as `Log.watch_disk` describes. May be called before `start`."""
        self._disk_limits = watermark, kept_free
        if self._replica is not None:
            self._replica.housekeeper.disk.follow(watermark, kept_free)

    def on_trimmed(self, hook: Callable[[int], None]) -> None:
        self.replica.on_trimmed.append(hook)

    def on_handover(self, hook: Callable[[], None]) -> None:
        self.replica.leading.on_handover.append(hook)

    # ---------------------------------------------------------------- group

    def request_channel(self, number: int, handler: Handler) -> RequestChannel:
        invariant(0 < number < 250 and self._links is not None, "a channel number of the service", number=number)
        assert self._links is not None
        return RequestChannel(self._links, number, handler, self.env)

    def hand_over(self, node_id: str) -> bool:
        return self.replica.transfer(self._member(node_id))

    async def transfer_leadership(self, to: str | None = None) -> bool:
        """Hand over to a voter, by default to the one with the longest log. False if it did not take over in time.

        Without `to` it is enough that this node stops leading. True at once if `to` is this node and it leads. Raises
        `NotLeaderError`.
        """
        replica = self.replica
        target = self._member(to) if to is not None else None
        if not replica.engine.is_leader:
            raise replica.not_leader()
        if to == self.config.node_id:
            return True
        term = self.term
        if not replica.transfer(target):
            return False
        for _ in range(self.config.election_max_ms // 10 * 2):
            await asyncio.sleep(0.01)
            if self._replica is None or self.term != term or not replica.engine.is_leader:
                if target is None:
                    return True
                leader = replica.engine.leader
                if leader is not None and self.term != term:
                    return leader == target
            elif not replica.leading.is_handing_over:
                return False
        return False

    def add_learner(self, replica_id: ReplicaId) -> None:
        """On the leader, add a replica as a learner. Raises `NotLeaderError`."""
        membership = self.membership
        self.replica.change_membership(Membership(membership.voters, (*membership.learners, replica_id)))

    def promote(self, node_id: str) -> None:
        """On the leader, make a learner a voter."""
        self.replica.change_membership(promote(self.membership, self._member(node_id)))

    def remove(self, node_id: str) -> None:
        """On the leader, remove a member. A leader that removes itself steps down once that is committed.

        Raises `NotLeaderError`, and `LogError` for a node that is not a member and for the last voter.
        """
        membership = without(self.membership, self._member(node_id))
        if not membership.voters:
            raise LogError(f"{node_id} is the only voter of {self.config.group}: a group without one decides nothing")
        self.replica.change_membership(membership)

    def _member(self, node_id: str) -> ReplicaId:
        member = self.membership.find(node_id)
        if member is None:
            members = ", ".join(sorted(member.node_id for member in self.membership.members))
            raise LogError(f"{node_id!r} is no member of {self.config.group}; its members are {members}")
        return member


class _Receiver:
    """Passes the links' calls on to the replica, which is made a moment after the links."""

    def __init__(self, node: Node, holds: LoopHolds) -> None:
        self._node = node
        self._peer_holds = holds.part(PEERS)

    def on_message(self, sender: ReplicaId, message: object, payload: bytes) -> None:
        with self._peer_holds:
            self._node.replica.on_message(sender, message, payload)  # type: ignore[arg-type]

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        with self._peer_holds:
            self._node.replica.on_data(sender, channel, data)

    def on_connected(self, peer: ReplicaId) -> None:
        logger.info("node=%s event=connected peer=%s", self._node.config.node_id, peer)
        self._node.replica.on_connected(peer)

    def on_disconnected(self, peer: ReplicaId) -> None:
        logger.info("node=%s event=disconnected peer=%s", self._node.config.node_id, peer)
        self._node.replica.on_disconnected(peer)
