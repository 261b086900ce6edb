"""Housekeeping of a replica: work that is due a few times a second and never urgent."""

from __future__ import annotations

from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.consensus.peers import DISK_FULL, DISK_SHORT
from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, StorageError
from dledger.replica.beginning import LongerLogHandover
from dledger.replica.connected import ConnectedPeers
from dledger.replica.disk_watch import DiskWatch
from dledger.replica.driver import Driver
from dledger.replica.joining import JoiningPolicy
from dledger.replica.leading import Leading
from dledger.replica.opening import Opened
from dledger.replica.own_commands import OwnCommands
from dledger.replica.reserving import Reserver
from dledger.replica.snapshotter import Snapshotter
from dledger.replica.standing import Standing
from dledger.replica.warnings import Warnings
from dledger.store.disk import LACKING, DiskSpace

PREPARE_STEP_BYTES = 16 << 20
"""Size of one step that fills new space with zeros.

Several steps a second cover about 60 MB/s; faster growth is not covered.
"""

DISK_CHECK_INTERVAL_S = 1.0
"""Interval between two looks at the file system, in seconds. Files of other programs fill it, too."""


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
        snapshotter: Snapshotter,
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
        self._longer_log_handover = LongerLogHandover(
            config.node_id, opened.store, snapshotter, connected, engine, leading
        )
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
