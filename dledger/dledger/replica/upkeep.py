"""Upkeep of a replica's files while it runs, and help for other nodes whose files are not whole."""

from __future__ import annotations

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.net.transport import Transport
from dledger.replica.asking import RETURNING_CHANNEL, GroupKnowledge
from dledger.replica.connected import ConnectedPeers
from dledger.replica.driver import Driver
from dledger.replica.fetching import Fetcher
from dledger.replica.flusher import Flusher
from dledger.replica.opening import Opened
from dledger.replica.reads import ReadWaiters
from dledger.replica.removal import Remover
from dledger.replica.repair import REPAIR_CHANNEL, Repairer
from dledger.replica.returning import AnswerDesk
from dledger.replica.scrub import PromiseScrub
from dledger.replica.snapshot_keeper import SNAPSHOT_COPY_CHANNEL, SnapshotKeeper
from dledger.replica.snapshotter import Snapshotter
from dledger.replica.standing import Standing
from dledger.types import ReplicaId

CHANNELS = frozenset((REPAIR_CHANNEL, SNAPSHOT_COPY_CHANNEL, RETURNING_CHANNEL))


class Upkeep:
    """Repairs the log, scrubs all other files, fetches earlier parts of the log, and removes trimmed files.

    Also answers nodes that come back after they lost files.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        opened: Opened,
        environment: Environment,
        transport: Transport,
        connected: ConnectedPeers,
        repairer: Repairer,
        remover: Remover,
        flusher: Flusher,
        reads: ReadWaiters,
        standing: Standing,
        snapshotter: Snapshotter,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._engine = engine
        self.repairer = repairer
        self.promises = PromiseScrub(
            config.node_id,
            environment,
            opened.store,
            opened.hard_state_file,
            opened.identity_files,
            opened.boot_file,
            flusher,
            driver,
            rest_s=config.scrub_interval_ms / 1000,
        )
        self.snapshots = SnapshotKeeper(
            config.node_id,
            environment,
            transport,
            opened.store,
            opened.snapshots,
            connected,
            standing,
            snapshotter,
            driver,
            rest_s=config.scrub_interval_ms / 1000,
        )
        self.fetcher = Fetcher(
            config.node_id,
            opened.identity.incarnation,
            environment,
            transport,
            opened.store,
            opened.snapshots,
            connected,
            standing,
            snapshotter,
            engine,
            pause_s=None if config.fetch_pause_ms is None else config.fetch_pause_ms / 1000,
        )
        self._remover = remover
        self._desk = AnswerDesk(transport, self._knowledge, reads.add)

    def tick(self) -> None:
        """Do everything that is due. The replica calls this a few times a second."""
        self.repairer.tick()
        self.promises.tick()
        self.snapshots.tick()
        self.fetcher.tick()
        self._remover.tick()

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Take bytes that arrived on one of `CHANNELS`."""
        if channel == REPAIR_CHANNEL:
            self.repairer.on_data(sender, data)
            self.fetcher.on_piece(sender, data)
        elif channel == SNAPSHOT_COPY_CHANNEL:
            self.snapshots.on_data(sender, data)
            self.fetcher.on_copy(sender, data)
        elif channel == RETURNING_CHANNEL:
            self._desk.on_data(sender, data)

    def stop(self) -> None:
        """Do nothing more."""
        self.repairer.stop()
        self.promises.stop()
        self.snapshots.stop()
        self.fetcher.stop()

    def close(self) -> None:
        """Remove unfinished copies of log entries and snapshots. No work may be running."""
        self.repairer.close()
        self.snapshots.close()

    def _knowledge(self) -> GroupKnowledge:
        engine = self._engine
        membership = engine.membership if engine.membership_is_known else None
        leader = None if engine.leader is None else engine.leader.node_id
        return GroupKnowledge(engine.own_term_committed, membership, leader)
