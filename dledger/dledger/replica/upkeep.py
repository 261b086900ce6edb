"""Upkeep of a replica's files while it runs, and help for other nodes whose files are not whole."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.net.transport import Transport
from dledger.replica.applier import Applier
from dledger.replica.driver import Driver
from dledger.replica.flusher import Flusher
from dledger.replica.opening import Opened
from dledger.replica.reads import ReadWaiters
from dledger.replica.removal import Remover
from dledger.replica.repair import REPAIR_CHANNEL, Repairer
from dledger.replica.returning import RETURNING_CHANNEL, Standing, StandingDesk
from dledger.replica.scrub import PromiseScrub
from dledger.replica.snapshot_keeper import SNAPSHOT_COPY_CHANNEL, SnapshotKeeper
from dledger.replica.snapshotter import Snapshotter
from dledger.types import ReplicaId

CHANNELS = frozenset((REPAIR_CHANNEL, SNAPSHOT_COPY_CHANNEL, RETURNING_CHANNEL))


class Upkeep:
    """Repair of the log, scrubs of everything else, removal of what was trimmed, and answers to nodes that come back.

    `connected` maps node ids to the incarnation that can be sent to.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        opened: Opened,
        environment: Environment,
        transport: Transport,
        connected: Mapping[str, ReplicaId],
        repairer: Repairer,
        remover: Remover,
        flusher: Flusher,
        reads: ReadWaiters,
        applier: Applier,
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
            opened.scrub_identity,
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
            applier,
            snapshotter,
            driver,
            rest_s=config.scrub_interval_ms / 1000,
        )
        self._remover = remover
        self._desk = StandingDesk(transport, self._standing, reads.add)

    def tick(self) -> None:
        """Go on with whatever is due; called a few times a second."""
        self.repairer.tick()
        self.promises.tick()
        self.snapshots.tick()
        self._remover.tick()

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        """Bytes of one of `CHANNELS` arrived."""
        if channel == REPAIR_CHANNEL:
            self.repairer.on_data(sender, data)
        elif channel == SNAPSHOT_COPY_CHANNEL:
            self.snapshots.on_data(sender, data)
        elif channel == RETURNING_CHANNEL:
            self._desk.on_data(sender, data)

    def stop(self) -> None:
        """Do nothing more."""
        self.repairer.stop()
        self.promises.stop()
        self.snapshots.stop()

    def close(self) -> None:
        """Remove what was collected; no work may be running."""
        self.repairer.close()
        self.snapshots.close()

    def _standing(self) -> Standing:
        engine = self._engine
        membership = engine.membership if engine.membership_is_known else None
        leader = None if engine.leader is None else engine.leader.node_id
        return Standing(engine.own_term_committed, membership, leader)
