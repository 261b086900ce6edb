"""Service of a simulated node: the real state machine, views, features and forwarding of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from dledger.statemachine import Leadership
from dledger_base.invariants import InvariantError
from dledger_broker.addresses import Address
from dledger_broker.clients.channels import Channels
from dledger_broker.config import BrokerConfig
from dledger_broker.features import FEATURES
from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.locks.leases import ANEW_S, LEASE_S, LeaseTimes
from dledger_broker.features.locks.requests import LockRequests
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pins.requests import PinRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.retention.job import Retention
from dledger_broker.features.retention.policy import REFUSE, RetentionPolicy
from dledger_broker.frontend.registration import Registrar
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine, MachineConfig
from dledger_broker.kernel.parts import Feature
from dledger_broker.service import BrokerService
from dledger_broker.testing.broker import guard
from dledger_broker.testing.databases import MemoryDatabases
from dledger_broker.views.timefile import NAME as TIME_INDEX
from dledger_remoting.frame import FrameBounds
from dledger_remoting.hosts import HostAddress
from dledger_sim.brokers.account_truth import KEYS
from dledger_sim.brokers.classes import CLASS_NAME, TARGET, MortalWorker
from dledger_sim.brokers.connection import BROKER_GROUP, SimConnection
from dledger_sim.brokers.obstacles import BusyNode, Obstacles, slow_down_reads
from dledger_sim.brokers.proposed import nothing_is_collected, watch_proposals
from dledger_sim.brokers.quota_waits import QuotaWaits
from dledger_sim.brokers.truth import Truth
from dledger_sim.brokers.waiting import Waiting
from dledger_sim.brokers.watched import WatchedMachine
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require
from dledger_sim.log.node import SimulatedNode
from dledger_sim.log.scheduler import Scheduler

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 10911
PORT_STEP: Final = 10
LAG_BYTES: Final = 8 << 10
"""Lag in bytes from which consumers read from followers, where only lagging consumers do so."""
CHUNK_BYTES: Final = 200
"""Size of a snapshot's chunk, in bytes.

A snapshot of about 4 KB has more chunks than may wait for the receiver's disk.
"""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Sizes and delays of the nodes. They are small, so that files roll and checkpoints move all the time.

    Retention deletes messages older than `retention_ms`, by wall clocks that may jump and drift, and the oldest beyond
    `retention_bytes`. It deletes others only as `when_full` says. Disks are `crowded` by files of others (see
    `crowds`).

    All nodes have `features`, except nodes of another version: a node in `other_features` starts with its features
    there. `lease_share` is the factor for the leases of locks, and for the beliefs of clients. With `class_filters`
    nodes have the single class of `classes`. With `access` they check requests against the accounts of `account_truth`.
    Topics may have `write_aliases`. `follower_reads` says which consumers are sent to followers.
    """

    units_per_file: int = 16
    index_slots: int = 64
    index_entries: int = 50
    checkpoint_bytes: int = 64 << 10
    view_flush_ms: int = 200
    offset_flush_ms: int = 200
    forward_hold_ms: int = 2000
    quorum_timeout_ms: int = 2500
    retention_ms: int = 5000
    retention_bytes: int = 0
    when_full: str = REFUSE
    crowded: bool = False
    idempotent_window_ms: int = 120_000
    transaction_timeout_ms: int = 2000
    transaction_check_interval_ms: int = 1000
    transaction_check_max: int = 3
    lease_share: float = 1.0
    class_filters: bool = False
    access: bool = False
    write_aliases: bool = False
    follower_reads: str = "off"
    limits: Mapping[str, int] = field(default_factory=dict)
    """Keys of the configuration that limit clients, where they are not as usual."""
    features: tuple[Feature, ...] = FEATURES
    other_features: Mapping[str, tuple[Feature, ...]] = field(default_factory=dict)


def address_of(name: str) -> HostAddress:
    """Return a node's client address."""
    return HostAddress(HOST, FIRST_PORT + PORT_STEP * int(name[1:]))


def node_at(address: str) -> str:
    """Return the node that has a port, as its own or for its write alias."""
    return f"n{(int(address.rpartition(':')[2]) - FIRST_PORT) // PORT_STEP}"


class SimBroker(EventListener):
    """Broker of one life of a node. It implements `dledger_sim.log.service.Service`."""

    def __init__(
        self,
        life: Life,
        scheduler: Scheduler,
        settings: BrokerSettings,
        obstacles: Obstacles,
        truth: Truth,
        databases: MemoryDatabases,
    ) -> None:
        name, environment = life.node.name, life.environment
        address, features = address_of(name), settings.other_features.get(name, settings.features)
        config = BrokerConfig(
            broker_group=BROKER_GROUP,
            node_id=name,
            data_dir=Path("unused"),
            trace_topic=False,  # no simulated client traces
            secret_file=Path("unused"),
            port=address.port,
            peers={peer: _peer_address(peer) for peer in sorted(life.node.config.peers) if peer != name},
            forward_hold_ms=settings.forward_hold_ms,
            quorum_timeout_ms=settings.quorum_timeout_ms,
            offset_flush_ms=settings.offset_flush_ms,
            idempotent_window_ms=settings.idempotent_window_ms,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            transaction_check_interval_ms=settings.transaction_check_interval_ms,
            transaction_check_max=settings.transaction_check_max,
            class_filters={CLASS_NAME: TARGET} if settings.class_filters else {},
            write_aliases=settings.write_aliases,
            **settings.limits,  # type: ignore[arg-type]
            follower_reads=settings.follower_reads,
            follower_reads_behind_bytes=LAG_BYTES,
        )
        self._life = life
        self._obstacles = obstacles
        self._truth = truth
        self.databases = databases
        self.counters = BrokerCounters()
        self.broker = BrokerMachine(
            "",
            env=environment,
            features=features,
            config=MachineConfig(
                node_id=name,
                view_flush_ms=settings.view_flush_ms,
                checkpoint_bytes=settings.checkpoint_bytes,
                units_per_file=settings.units_per_file,
                index_slots=settings.index_slots,
                index_entries=settings.index_entries,
            ),
            disk=life.node.disk,
            databases=databases,
        )
        self.broker.keys.on_restart = partial(self._failed, "the key index")
        self.broker.jobs.on_failure = partial(self._failed, "a leader's job")
        node = BusyNode(life, scheduler, obstacles) if obstacles.busy_share else SimulatedNode(life)
        if obstacles.slow_reads_s:
            slow_down_reads(environment, Random(f"{name} {life.node.lives} reads"), obstacles)
        self.broker.attach(node)
        self.waiting = Waiting(life, scheduler, self.broker, truth)
        self.machine = WatchedMachine(self.broker, life, truth, self.waiting)
        group = LeadershipView(name, str(config.advertised), self.broker.events)
        self.service = BrokerService(
            config, features, self.broker, node, environment, group, self.counters, address, Channels()
        )
        if settings.access:
            guard(self.service, self.broker, KEYS, environment)
        self.registrar = Registrar(self.broker, group, config)
        self.broker.events.add(self.registrar)
        """Source of registrations at name servers. `name_server` reads it."""
        self.retention = self.service.parts[Retention]
        kept = RetentionPolicy(
            max_age_ms=settings.retention_ms, max_log_bytes=settings.retention_bytes, when_full=settings.when_full
        )
        self.retention.policy = lambda: kept
        if settings.class_filters:
            worker = MortalWorker(Random(f"{name} {life.node.lives} classes"), truth.happened)
            self.service.parts[ClassFilters].workers = {CLASS_NAME: worker}
        leases = self.service.parts[LockRequests].leases
        leases.times = LeaseTimes(LEASE_S * settings.lease_share, ANEW_S * settings.lease_share)
        self.waiting.watch(self.service.parts[PullRequests], group)
        self.machine.checks.append(
            watch_proposals(
                self.broker,
                self.service.parts[OffsetRequests].commits.buffer,
                self.retention.trimming,
                lambda: scheduler.now,
                lambda: environment.paused_until,
            )
        )
        self._time_index = self.service.parts[DueMessages].index.rows.follower
        self._time_index.always_compare = True
        self.machine.checks.append(self._check_time_index)
        self.machine.checks.append(QuotaWaits(life, scheduler, self.service.parts[QuotaRequests].reads).check)
        self.reign = 0
        """Number of the present reign, 0 while the node does not lead or is not ready.

        It is unique for each time that the node leads and is ready without a break.
        """
        self._reigns = 0
        self.is_deaf = False
        """True if the node stops, and reads nothing more from its connections."""
        self.connections: dict[SimConnection, None] = {}
        """Connections over which requests came."""
        self.broker.events.add(self)

    def _check_time_index(self) -> None:
        require(not self._time_index.mismatches, "the time index agrees with the state", node=self._life.node.name)

    def _failed(self, what: str) -> None:
        """Report a failure that a real process repairs by itself. The repair must not hide the failure here."""
        error = InvariantError(f"{what} met an exception that nobody expected")
        self._life.environment.loop.call_exception_handler({"exception": error})

    def start(self) -> None:
        """Start the broker, with small chunks of snapshots."""
        self._life.replica.snapshots.chunk_bytes = CHUNK_BYTES
        self.service.start()

    def leave(self) -> None:
        """Send clients elsewhere, and answer waiting requests."""
        self.service.release()

    def stop(self, done: Callable[[], None]) -> None:
        """Stop the broker in an orderly way, then call `done`."""

        async def close() -> None:
            leads = self.reign and not self._obstacles.busy_share and not self._truth.disks_filled
            await self.service.settle(self._close_intake)
            if leads and self.reign:
                nothing_is_collected(self.broker, self.service.parts[OffsetRequests].commits.buffer)
            if self._life.replica.failure is None:
                await self.broker.close()
            await self.service.part()
            if leads and self.reign:
                nothing_is_collected(self.broker, self.service.parts[OffsetRequests].commits.buffer)
            done()

        self._life.environment.loop.create_task(close())

    def _close_intake(self) -> None:
        self.is_deaf = True

    def rot_rows(self, where: float, how: str) -> bool:
        """Damage the time index. Return False without a time index, or if it has no row."""
        databases = self.databases
        if how == "lost":
            return databases.lose(TIME_INDEX)
        if how == "sector":
            return databases.cut(TIME_INDEX, where)
        if how == "unreadable":
            return databases.make_unreadable(TIME_INDEX)
        return databases.rot_row(TIME_INDEX, where)

    def trim(self, position: int) -> None:
        """Trim up to a position as leader.

        Pinned and pending messages stay: the trim waits until pending messages have been moved.
        """
        handle, trimming = self.broker.jobs.handle_of(self.retention.name), self.retention.trimming
        pinned = self.service.parts[PinRequests].proposed.lowest(self._life.environment.wall_ms())
        moves = self.service.parts[DueMessages].moves
        if handle is not None and not trimming.is_busy and (pinned is None or position <= pinned):
            moves.request(position, disk_full=False)
            if moves.is_free_below(position):
                trimming.trim(handle, position)

    def new_leadership(self, leadership: Leadership) -> None:
        if leadership.ready and not self.reign:
            self._reigns += 1
        self.reign = self._reigns if leadership.ready else 0

    def on_frames(self, origin: SimConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Handle requests that came over a connection."""
        self.connections[origin] = None
        self.service.requests.on_frames(origin, data, frames)

    def on_closed(self, origin: SimConnection) -> None:
        """Handle a connection that its client has closed."""
        self.service.channel_lost(origin)


def _peer_address(name: str) -> Address:
    address = address_of(name)
    return Address(address.ip, address.port + 1)
