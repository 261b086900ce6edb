"""Upkeep of a replica: work that is due a few times a second and never urgent, on its files, its disk and its members.

It also helps other nodes whose files are not whole.
"""

from __future__ import annotations

from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.consensus.peers import DISK_FULL, DISK_SHORT
from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, StorageError
from dledger.net.transport import Transport
from dledger.replica.applying.reads import ReadWaiters
from dledger.replica.driver import Driver
from dledger.replica.snapshots.keeping import SNAPSHOT_COPY_CHANNEL, SnapshotKeeper
from dledger.replica.snapshots.taking import Remover, SnapshotTaker
from dledger.replica.standing import ConnectedPeers, Standing
from dledger.replica.start.inquiries import RETURNING_CHANNEL, AnswerDesk, GroupKnowledge
from dledger.replica.start.opening import Opened
from dledger.replica.storing.flusher import Flusher
from dledger.replica.upkeep.fetching import Fetcher
from dledger.replica.upkeep.members import JoiningPolicy, LongerLogHandover
from dledger.replica.upkeep.repair import REPAIR_CHANNEL, Repairer
from dledger.replica.upkeep.scrub import PromiseScrub
from dledger.replica.upkeep.watching import DiskWatch, Warnings
from dledger.replica.writing.leading import Leading
from dledger.replica.writing.own_commands import OwnCommands
from dledger.replica.writing.space import Reserver
from dledger.store.disk import LACKING, DiskSpace
from dledger.types import ReplicaId

CHANNELS = frozenset((REPAIR_CHANNEL, SNAPSHOT_COPY_CHANNEL, RETURNING_CHANNEL))
PREPARE_STEP_BYTES = 16 << 20
"""Size of one step that fills new space with zeros.

Several steps a second cover about 60 MB/s; faster growth is not covered.
"""

DISK_CHECK_INTERVAL_S = 1.0
"""Interval between two looks at the file system, in seconds. Files of other programs fill it, too."""


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
        taker: SnapshotTaker,
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
            taker,
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
            taker,
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


class Housekeeping:
    """Does the housekeeping.

    A start that is not recorded yet is recorded once this replica may vote and there is room to write the record.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        opened: Opened,
        environment: Environment,
        own_commands: OwnCommands,
        taker: SnapshotTaker,
        reserver: Reserver,
        leading: Leading,
        connected: ConnectedPeers,
        standing: Standing,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._environment = environment
        self._store = opened.store
        self._own_commands = own_commands
        self._reserver = reserver
        self._leading = leading
        self._joining = JoiningPolicy(config.peers, config.learners)
        self._warnings = Warnings(config.node_id, config.peers)
        self._longer_log_handover = LongerLogHandover(config.node_id, opened.store, taker, connected, engine, leading)
        self._connected = connected
        self._standing = standing
        self._engine = engine
        self._driver = driver
        self._saved_commit = opened.commit_index
        """The commit index that the directory holds."""
        self._boot_file = opened.boot_file
        self._is_recording = False
        self._is_preparing = False
        self._prepared_end = -1
        self.disk = DiskWatch(config)
        self._next_disk_check_at = float("-inf")

    def run(self) -> None:
        """Do all work that is due."""
        engine, store = self._engine, self._store
        self._reserver.retry()
        has_room = self._reserver.has_room(store.end_position)
        engine.disk_used = self._disk_used(has_room=has_room)
        self._check_disk()
        engine.wall_ms = self._environment.wall_ms()
        engine.first_position = store.first_position
        self._leading.admission.check(self._environment.now(), leads=self._standing.is_ready)
        self._save_commit(engine.commit_index)
        if not self._boot_file.recorded and engine.may_vote and has_room and not self._is_recording:
            self._record_start()
        if not has_room or store.end_position != self._prepared_end:
            self._prepare_ahead()
        self._own_commands.offer_digest()
        self._warnings.log_due(engine, self._environment.now())
        if self._standing.is_ready:
            self._longer_log_handover.check(self._environment.now())
        if self._standing.is_ready and engine.can_change_membership:
            membership = self._joining.next_membership(
                engine.membership,
                self._connected,
                engine.progress,
                engine.commit_index,
                self._environment.now(),
            )
            if membership is not None:
                try:
                    self._leading.change_membership(membership)
                except BusyError:
                    pass  # it is due again in a moment

    def _disk_used(self, *, has_room: bool) -> int:
        """Return the disk use for `Peer.disk_used`.

        That is `DISK_FULL` without room for more entries, `DISK_SHORT` if the disk is short, else the used share in
        1/1000.
        """
        if not has_room:
            return DISK_FULL
        return DISK_SHORT if self.disk.is_short else min(int(self.disk.used_ratio * DISK_FULL), DISK_FULL - 1)

    def _check_disk(self) -> None:
        """Measure the file system off the event loop: a disk that hangs may not answer even that."""
        if self._environment.now() < self._next_disk_check_at:
            return
        self._next_disk_check_at = float("inf")

        newest = self._store.snapshots.latest()

        def measure() -> tuple[DiskSpace, int]:
            snapshot_bytes = 0 if newest is None else self._store.snapshots.size_on_disk(newest)
            return self._store.disk_space(), snapshot_bytes

        def done(result: tuple[DiskSpace, int] | BaseException) -> None:
            self._next_disk_check_at = self._environment.now() + DISK_CHECK_INTERVAL_S
            if isinstance(result, BaseException):
                self._driver.fail(StorageError(f"the free space of the disk cannot be read: {result}"))
            else:
                self.disk.update(*result)

        self._environment.run_blocking(BACKGROUND, measure, done)

    def _record_start(self) -> None:
        self._is_recording = True

        def done(error: BaseException | None) -> None:
            self._is_recording = False
            if error is not None and not (isinstance(error, OSError) and error.errno in LACKING):
                self._driver.fail(StorageError(f"recording this start failed: {error}"))

        self._environment.run_blocking(BACKGROUND, self._boot_file.record, done)

    def _save_commit(self, commit_index: int) -> None:
        """Save the commit index as far as the entries are durable here.

        A later commit index would make a torn end of the log look like damage below it.
        """
        commit_index = min(commit_index, self._store.durable)
        if commit_index > self._saved_commit:
            self._saved_commit = commit_index
            self._store.save_commit(commit_index)

    def _prepare_ahead(self) -> None:
        """Fill the space that the log will grow into, off the event loop and one step at a time."""
        if self._is_preparing:
            return
        self._is_preparing = True
        end = self._store.end_position

        def done(result: object) -> None:
            self._is_preparing = False
            self._prepared_end = end if result is False else -1  # nothing is left to do until the log has grown
            if isinstance(result, StorageError):
                self._driver.fail(result)

        self._environment.run_blocking(BACKGROUND, partial(self._store.prepare_ahead, PREPARE_STEP_BYTES), done)
