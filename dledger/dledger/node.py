"""A replica on this machine: `Replica` joined to the real disk, sockets, clock and threads.

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
from dledger.engines.native import NATIVE
from dledger.environment import COLD, AsyncioEnvironment, Environment, called_back
from dledger.errors import (
    CorruptionError,
    LogError,
    NotLeaderError,
    TrimmedError,
)
from dledger.invariants import invariant
from dledger.log import Log
from dledger.loop_guard import excepted
from dledger.loop_holds import PEERS, LoopHolds
from dledger.net.links import Links
from dledger.net.requests import Handler, RequestChannel
from dledger.net.settings import LinkCounters
from dledger.reopening import NodeDirectory, close_replica, lock_directory, make_links
from dledger.replica.clocks import voter_clocks
from dledger.replica.describe import describe
from dledger.replica.joining import promote, without
from dledger.replica.proposer import Fill
from dledger.replica.replica import Replica
from dledger.replica.status import NodeStatus
from dledger.statemachine import StateMachine
from dledger.store.disk import DiskSpace
from dledger.store.identity import DirectoryLock
from dledger.store.log import Pin, SegmentInfo
from dledger.store.ranges import EntryRun, LogCut, RecordSpan, find_cuts, last_records, read_run, record_spans
from dledger.store.reader import OpenFile
from dledger.types import Membership, Position, ReplicaId, WallClock

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Node(Log):
    """One node of a group: its log, see `dledger.log.Log`, and what runs and administers it.

    Raises, from `start`: `ConfigError` (address in use, contradictory settings), `IdentityError` (the directory is
    somebody else's), `LostDirectoryError` (it lost what a group's only voter had promised), `CorruptionError` and
    `StorageError` (it cannot be used).
    """

    def __init__(
        self,
        config: NodeConfig,
        state_machine: StateMachine,
        *,
        engine: EngineKind = NATIVE,
        holds: LoopHolds | None = None,
    ) -> None:
        self.config = config
        self._holds = holds or LoopHolds()
        self._engine = engine
        self._machine = AppendResolver(state_machine)
        self._failed: asyncio.Event | None = None
        self._environment: AsyncioEnvironment | None = None
        self._lock: DirectoryLock | None = None
        self._directory: NodeDirectory | None = None
        self._links: Links | None = None
        self._replica: Replica | None = None

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Recover the directory, listen, and take part.  Restoring the state machine goes on in the background.

        A directory that lost what was promised from it makes this wait for a leader, see `waits_for`.
        """
        config, loop = self.config, asyncio.get_running_loop()
        self._lock = lock_directory(config)
        self._failed = asyncio.Event()
        self._environment = AsyncioEnvironment(loop, self._holds)
        self._holds.begin()
        try:
            self._directory = NodeDirectory(config, self._environment, self._engine)
            opened = await self._directory.open()
            for note in opened.notes:
                logger.warning("event=directory_note directory=%s note=%r", config.data_dir, note)
            self._links = make_links(config, opened.identity.incarnation, _Receiver(self, self._holds), self._engine)
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
            await self._links.start()
            self._replica.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave at once, without handing over (see `transfer_leadership`).  May be called twice."""
        if self._replica is not None:
            self._replica.stop()
        if self._links is not None:
            await self._links.stop()
        if self._environment is not None:
            self._environment.close()
            self._environment = None
            self._holds.end()
        replica, self._replica = self._replica, None
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
        if self._failed is not None:
            self._failed.set()

    async def wait_failed(self) -> BaseException:
        """Wait until this node cannot go on; returns why.  It is to be stopped then, and the process should exit."""
        invariant(self._failed is not None, "the node is started")
        if self._failed is not None:
            await self._failed.wait()
        failure = self.replica.failure
        return failure if failure is not None else LogError("the node failed")

    # ---------------------------------------------------------------- what it is

    @property
    def waits_for(self) -> str | None:
        """While `start` waits for a leader: why, and what an operator can do."""
        return None if self._directory is None else self._directory.waits_for

    @property
    def replica(self) -> Replica:
        if self._replica is None:
            raise NotLeaderError(None, 0, f"node {self.config.node_id} is not running")
        return self._replica

    @property
    def env(self) -> Environment:
        invariant(self._environment is not None, "the node is started")
        assert self._environment is not None
        return self._environment

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens for peers."""
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
        """The node id of the leader, if one is known."""
        leader = self.replica.engine.leader
        return None if leader is None else leader.node_id

    @property
    def is_ready(self) -> bool:
        """See `Log.is_ready`."""
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
        """See `Log.segment_bytes`."""
        return self.replica.store.segment_bytes

    @property
    def first_position(self) -> int:
        """See `Log.first_position`."""
        return self.replica.store.first_position

    @property
    def last_position(self) -> int:
        """End of the log."""
        return self.replica.store.end_position

    @property
    def end_position(self) -> int:
        """See `Log.end_position`."""
        return self.replica.leading.end_position

    @property
    def durable_position(self) -> int:
        """See `Log.durable_position`."""
        return self.replica.durable_position

    @property
    def membership(self) -> Membership:
        """See `Log.membership`."""
        return self.replica.engine.membership

    def status(self) -> NodeStatus:
        """See `Log.status`."""
        return describe(self.replica)

    def voter_clocks(self) -> list[WallClock | None]:
        """See `Log.voter_clocks`."""
        environment = self.replica.environment
        return voter_clocks(self.replica.engine, self.replica.me, environment.now(), environment.wall_ms())

    def link_counters(self) -> LinkCounters:
        """What happened on the links to the other nodes since this one started."""
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
        """See `Log.stage`."""
        return self.replica.stage(size, fill, commands, context, privileged=privileged)

    @property
    def disk_space(self) -> DiskSpace | None:
        """See `Log.disk_space`."""
        # A timer of a service may ask between a stop and the next start, when a log is put aside and begun anew.
        return None if self._replica is None else self._replica.housekeeper.disk_space

    @property
    def reserve_left(self) -> float:
        """See `Log.reserve_left`."""
        return self.replica.store.reserve_left

    async def append(self, body: bytes) -> Position:
        """Append one unit and wait until it is committed and applied; returns where it stands.

        Raises as `stage`, and `OutcomeUnknownError` if leadership is lost meanwhile.
        """
        context = Appended(asyncio.get_running_loop().create_future())
        context.position = Position(self.stage(len(body), lambda _: (body,), context=context))
        return await context.future

    def trim(self, before_position: int) -> bool:
        """See `Log.trim`."""
        return self.replica.propose_trim(before_position)

    def trim_candidates(self) -> list[int]:
        """See `Log.trim_candidates`."""
        first = self.first_position
        return [meta.position for meta in self.replica.snapshots.list() if meta.position > first]

    # ---------------------------------------------------------------- reading

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        """See `Log.read_index`."""
        self.replica.read_index(callback)

    async def read_barrier(self) -> None:
        """The async form of `read_index`; raises `NotLeaderError`."""
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
        """See `Log.broadcast_commit`."""
        self.replica.broadcast_commit()

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """See `Log.read_nowait`."""
        return self.replica.store.read_nowait(position, size)

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        """See `Log.with_open_file`."""
        return self.replica.store.with_open_file(position, use)

    async def read(self, position: int, size: int) -> bytes:
        """See `Log.read`."""
        if position < self.first_position:
            raise TrimmedError(f"position {position} is below the first kept one, {self.first_position}")
        return await self._read(position, partial(self.replica.store.read, position, size))

    async def cuts(self, start: int, end: int, slice_bytes: int) -> list[LogCut]:
        """See `Log.cuts`."""
        return await self._cold(partial(find_cuts, self.replica.store, start, end, slice_bytes))

    async def read_run(self, start: int, end: int, max_bytes: int) -> EntryRun:
        """See `Log.read_run`."""
        return await self._read(start, partial(read_run, self.replica.store, start, end, max_bytes))

    async def record_spans(self, start: int, end: int) -> list[RecordSpan]:
        """See `Log.record_spans`."""
        return await self._cold(partial(record_spans, self.replica.store, start, end))

    def last_records(self, start: int, end: int) -> list[bytes]:
        """See `Log.last_records`."""
        return last_records(self.replica.store, start, end)

    def segment_written_ms(self, start: int) -> int:
        """See `Log.segment_written_ms`."""
        return self.replica.store.segment_written_ms(start)

    async def _read(self, position: int, work: Callable[[], T]) -> T:
        replica = self.replica
        try:
            return await self._cold(work)
        except CorruptionError:
            replica.repairer.read_failed(position)
            raise

    async def _cold(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self.env.run_blocking(COLD, work, done))

    async def pin(self, position: int) -> Pin:
        """Keep the segment that holds `position` readable until the pin is released.  Raises as `read`."""
        work = partial(self.replica.store.pin, position)
        return await called_back(lambda done: self.env.run_blocking(COLD, work, done), unclaimed=Pin.release)

    def segments(self) -> list[SegmentInfo]:
        """See `Log.segments`."""
        return self.replica.store.segments()

    def on_trimmed(self, hook: Callable[[int], None]) -> None:
        """See `Log.on_trimmed`."""
        self.replica.on_trimmed.append(hook)

    def on_handover(self, hook: Callable[[], None]) -> None:
        """See `Log.on_handover`."""
        self.replica.leading.on_handover.append(hook)

    # ---------------------------------------------------------------- group

    def request_channel(self, number: int, handler: Handler) -> RequestChannel:
        """See `Log.request_channel`."""
        invariant(0 < number < 250 and self._links is not None, "a channel number of the service", number=number)
        assert self._links is not None
        return RequestChannel(self._links, number, handler, self.env)

    def hand_over(self, node_id: str) -> bool:
        """See `Log.hand_over`."""
        return self.replica.transfer(self._member(node_id))

    async def transfer_leadership(self, to: str | None = None) -> bool:
        """Hand over to a voter, by default the one with the most of the log; False if it did not take over in time.

        Without `to` it is enough that this node leads no more. True at once if `to` is this node, which leads already.
        Raises `NotLeaderError`.
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
            elif not replica.leading.hands_over:
                return False
        return False

    def add_learner(self, replica_id: ReplicaId) -> None:
        """Leader: take a replica in as a learner.  Raises `NotLeaderError`."""
        membership = self.membership
        self.replica.change_membership(Membership(membership.voters, (*membership.learners, replica_id)))

    def promote(self, node_id: str) -> None:
        """Leader: make a learner a voter."""
        self.replica.change_membership(promote(self.membership, self._member(node_id)))

    def remove(self, node_id: str) -> None:
        """Leader: remove a member; a leader that removes itself steps down once that is committed.

        Raises `NotLeaderError`, and `LogError` for a stranger and for the last voter.
        """
        membership = without(self.membership, self._member(node_id))
        if not membership.voters:
            raise LogError(f"{node_id} is the only voter of {self.config.group}: a group without one decides nothing")
        self.replica.change_membership(membership)

    def _member(self, node_id: str) -> ReplicaId:
        member = self.membership.find(node_id)
        if member is None:
            members = ", ".join(sorted(each.node_id for each in self.membership.members))
            raise LogError(f"{node_id!r} is no member of {self.config.group}; its members are {members}")
        return member


class _Receiver:
    """Passes what the links receive on to the replica, which exists a moment later than they do."""

    def __init__(self, node: Node, holds: LoopHolds) -> None:
        self._node = node
        self._peers = holds.part(PEERS)

    def on_message(self, sender: ReplicaId, message: object, payload: bytes) -> None:
        with self._peers:
            self._node.replica.on_message(sender, message, payload)  # type: ignore[arg-type]

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        with self._peers:
            self._node.replica.on_data(sender, channel, data)

    def on_connected(self, peer: ReplicaId) -> None:
        logger.info("node=%s event=connected peer=%s", self._node.config.node_id, peer)
        self._node.replica.on_connected(peer)

    def on_disconnected(self, peer: ReplicaId) -> None:
        logger.info("node=%s event=disconnected peer=%s", self._node.config.node_id, peer)
        self._node.replica.on_disconnected(peer)
