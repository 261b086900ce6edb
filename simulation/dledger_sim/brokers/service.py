"""Service of a simulated node: the real state machine, views, features and forwarding of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from dledger.invariants import InvariantError
from dledger.statemachine import Leadership
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
from dledger_broker.features.retention.policy import RetentionPolicy
from dledger_broker.frontend.registration import Registrar
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine, MachineConfig
from dledger_broker.kernel.parts import Feature
from dledger_broker.service import BrokerService
from dledger_broker.testing.access import guard
from dledger_broker.testing.databases import MemoryDatabases
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
"""Where only consumers that lag read from followers, these do."""
CHUNK_BYTES: Final = 200
"""A snapshot of some 4 KB is sent in pieces, and these are more than may wait for the receiver's disk."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Sizes and delays of the nodes; small, so that files roll and checkpoints move all the time.

    Messages older than `retention_ms` go, by wall clocks that may jump and drift.  All nodes have `features`, but for
    those of another version: a node that is in `other_features` when it starts has these. Leases of locks, and what
    clients believe in, are so much shorter than usual: `lease_share`. With `class_filters` they have the one class of
    `classes`, with `access` they judge requests by the accounts of `account_truth`. Their topics have `write_aliases`,
    and consumers are sent to followers, if told to: `follower_reads`.
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
    idempotent_window_ms: int = 120_000
    transaction_timeout_ms: int = 2000
    transaction_check_interval_ms: int = 1000
    transaction_check_max: int = 3
    lease_share: float = 1.0
    class_filters: bool = False
    access: bool = False
    write_aliases: bool = False
    follower_reads: str = "off"
    features: tuple[Feature, ...] = FEATURES
    other_features: Mapping[str, tuple[Feature, ...]] = field(default_factory=dict)


def address_of(name: str) -> HostAddress:
    """A node's client address."""
    return HostAddress(HOST, FIRST_PORT + PORT_STEP * int(name[1:]))


def node_at(address: str) -> str:
    """The node that has a port, of its own or of its write alias."""
    return f"n{(int(address.rpartition(':')[2]) - FIRST_PORT) // PORT_STEP}"


class SimBroker:
    """One life's broker; implements `dledger_sim.log.service.Service`."""

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
            trace_topic=False,  # nobody traces here
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
            follower_reads=settings.follower_reads,
            follower_reads_behind_bytes=LAG_BYTES,
        )
        self._life = life
        self._obstacles = obstacles
        self._truth = truth
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
        group = Group(name, str(config.advertised))
        self.service = BrokerService(
            config, features, self.broker, node, environment, group, self.counters, address, Channels()
        )
        if settings.access:
            guard(self.service, self.broker, KEYS)
        self.registrar = Registrar(self.broker, group, config)
        """Says what name servers are to know; they are told by `name_server`."""
        self.retention = self.service.parts[Retention]
        kept = RetentionPolicy(max_age_ms=settings.retention_ms)
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
        """A number of its own for each time that this node leads and is ready without a break; 0 while it is not."""
        self._reigns = 0
        self.is_deaf = False
        """It stops, and reads nothing more of what comes over its connections."""
        self.connections: dict[SimConnection, None] = {}
        """The connections over which requests came."""
        self.broker.on_leadership_changed.append(self._on_leadership)

    def _check_time_index(self) -> None:
        require(not self._time_index.mismatches, "the time index agrees with the state", node=self._life.node.name)

    def _failed(self, what: str) -> None:
        """What mends a fault in a real process must not hide it here."""
        error = InvariantError(f"{what} met an exception that nobody expected")
        self._life.environment.loop.call_exception_handler({"exception": error})

    def start(self) -> None:
        """See `Service.start`."""
        self._life.replica.snapshots.chunk_bytes = CHUNK_BYTES
        self.service.start()

    def leave(self) -> None:
        """See `Service.leave`."""
        self.service.release()

    def stop(self, done: Callable[[], None]) -> None:
        """See `Service.stop`."""

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

    def trim(self, position: int) -> None:
        """See `Service.trim`; what is pinned, and messages that are not due yet, stay, unless a disk is too full."""
        handle, trimming = self.broker.jobs.handle_of(self.retention.name), self.retention.trimming
        pinned = self.service.parts[PinRequests].proposed.lowest(self._life.environment.wall_ms())
        moves = self.service.parts[DueMessages].moves
        if handle is not None and not trimming.is_busy and (pinned is None or position <= pinned):
            moves.want(position, disk_full=False)
            if moves.is_free_below(position):
                trimming.trim(handle, position)

    def _on_leadership(self, leadership: Leadership) -> None:
        if leadership.ready and not self.reign:
            self._reigns += 1
        self.reign = self._reigns if leadership.ready else 0

    def on_frames(self, origin: SimConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Requests came over a connection."""
        self.connections[origin] = None
        self.service.requests.on_frames(origin, data, frames)

    def on_closed(self, origin: SimConnection) -> None:
        """A client has closed its connection."""
        self.service.channel_lost(origin)


def _peer_address(name: str) -> Address:
    address = address_of(name)
    return Address(address.ip, address.port + 1)
