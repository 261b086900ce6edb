"""Housekeeping of a replica: work that is due a few times a second, and never urgent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.consensus.peers import DISK_FULL
from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, StorageError
from dledger.replica.driver import Driver
from dledger.replica.joining import JoiningPolicy
from dledger.replica.leading import Leading
from dledger.replica.opening import Opened
from dledger.replica.reserving import Reserver
from dledger.replica.snapshotting import Snapshotting
from dledger.replica.warnings import Warnings
from dledger.store.disk import FULL, DiskSpace
from dledger.types import ReplicaId

PREPARE_STEP_BYTES = 16 << 20
"""Several times a second: zeros for about 60 MB/s of log.  One that grows much faster is not filled."""

LOOK_AT_DISK_S = 1.0
"""How often it is looked how full the file system is, by others' files, too."""


class Housekeeping:
    """`connected` maps node ids to the incarnation that can be sent to.

    A start that is still to be recorded is, once this replica may vote and there is room for what that writes.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        opened: Opened,
        environment: Environment,
        snapshotting: Snapshotting,
        reserver: Reserver,
        leading: Leading,
        connected: Mapping[str, ReplicaId],
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._environment = environment
        self._store = opened.store
        self._snapshotting = snapshotting
        self._reserver = reserver
        self._leading = leading
        self._joining = JoiningPolicy(config.peers, config.learners)
        self._warnings = Warnings(config.node_id, config.peers)
        self._connected = connected
        self._engine = engine
        self._driver = driver
        self._saved_commit = opened.commit_index
        """The commit index that the directory holds."""
        self._boot_file = opened.boot_file
        self._recording = False
        self._preparing = False
        self._prepared_end = -1
        self.disk_space: DiskSpace | None = None
        """As it was at the last look; None before the first one."""
        self._look_at = float("-inf")

    def run(self) -> None:
        """Do what is due."""
        engine, store = self._engine, self._store
        self._reserver.retry()
        has_room = self._reserver.has_room(store.end_position)
        used_ratio = self.disk_space.used_ratio if self.disk_space is not None else 0.0
        engine.disk_used = min(int(used_ratio * DISK_FULL), DISK_FULL - 1) if has_room else DISK_FULL
        self._look_at_disk()
        engine.wall_ms = self._environment.wall_ms()
        self._leading.admission.look(self._environment.now(), leads=self._driver.is_ready)
        self._save_commit(engine.commit_index)
        if not self._boot_file.recorded and engine.may_vote and has_room and not self._recording:
            self._record_start()
        if not has_room or store.end_position != self._prepared_end:
            self._prepare_ahead()
        self._snapshotting.offer_digest()
        self._warnings.look(engine, self._environment.now())
        if self._driver.is_ready and engine.can_change_membership:
            membership = self._joining.due(
                engine.membership,
                self._connected.values(),
                engine.progress,
                engine.commit_index,
                self._environment.now(),
            )
            if membership is not None:
                try:
                    self._leading.change_membership(membership)
                except BusyError:
                    pass  # it is due again in a moment

    def _look_at_disk(self) -> None:
        """See how full the file system is, off the event loop: a disk that hangs may not answer that either."""
        if self._environment.now() < self._look_at:
            return
        self._look_at = float("inf")

        def done(space: DiskSpace | BaseException) -> None:
            self._look_at = self._environment.now() + LOOK_AT_DISK_S
            if isinstance(space, BaseException):
                self._driver.fail(StorageError(f"the free space of the disk cannot be told: {space}"))
            else:
                self.disk_space = space

        self._environment.run_blocking(BACKGROUND, self._store.disk_space, done)

    def _record_start(self) -> None:
        self._recording = True

        def done(error: BaseException | None) -> None:
            self._recording = False
            if error is not None and not (isinstance(error, OSError) and error.errno in FULL):
                self._driver.fail(StorageError(f"recording this start failed: {error}"))

        self._environment.run_blocking(BACKGROUND, self._boot_file.record, done)

    def _save_commit(self, commit_index: int) -> None:
        """As far as it is durable here: else a torn end would look like damage below the commit index."""
        commit_index = min(commit_index, self._store.durable)
        if commit_index > self._saved_commit:
            self._saved_commit = commit_index
            self._store.save_commit(commit_index)

    def _prepare_ahead(self) -> None:
        """Fill the space that the log will grow into, off the event loop and one step at a time."""
        if self._preparing:
            return
        self._preparing = True
        end = self._store.end_position

        def done(result: object) -> None:
            self._preparing = False
            self._prepared_end = end if result is False else -1  # nothing is left to do until the log has grown
            if isinstance(result, StorageError):
                self._driver.fail(result)

        self._environment.run_blocking(BACKGROUND, partial(self._store.prepare_ahead, PREPARE_STEP_BYTES), done)
