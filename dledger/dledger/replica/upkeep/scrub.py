"""Scrub of the small files that hold this replica's promises: re-reads them and writes rotten copies anew.

The identity, the durable mark, and term and vote are each on the disk twice, and memory knows their content. So a copy
that rots while the node runs is replaced before the other copy can rot as well. The record of the start is on the disk
only once, and is scrubbed in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from dledger.environment import BACKGROUND, HARD_STATE, Environment
from dledger.errors import BusyError, StorageError
from dledger.replica.driver import Driver
from dledger.replica.start.boot import PATH as BOOT_PATH
from dledger.replica.start.boot import BootFile
from dledger.replica.storing.flusher import Flusher
from dledger.store.disk import LACKING
from dledger.store.hardstate import PATH as HARD_STATE_PATH
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import PATH as IDENTITY_PATH
from dledger.store.identity import IdentityFiles
from dledger.store.log import LogStore
from dledger.store.mark import PATH as MARK_PATH

Done = Callable[[object], None]
Step = tuple[str, Callable[[Done], None]]
"""A file and the call that has a worker check it.

Its callback gets the number of copies written anew, or an exception.
"""

logger = logging.getLogger(__name__)


class PromiseScrub:
    """Checks one file after the other, each on the lane on which it is written. `tick` begins a round that is due.

    The durable mark is checked between two syncs. The end of a sync writes the mark on the event loop. There it would
    wait for the lock that a check holds while it reads the disk. `rest_s` is the pause between two rounds.
    """

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        store: LogStore,
        hard_state_file: HardStateFile,
        identity_files: IdentityFiles,
        boot_file: BootFile,
        flusher: Flusher,
        driver: Driver,
        *,
        rest_s: float,
    ) -> None:
        self._node_id = node_id
        self._environment = environment
        self._driver = driver
        self._round_pause_s = rest_s
        self._steps: tuple[Step, ...] = (
            (HARD_STATE_PATH, partial(environment.run_blocking, HARD_STATE, hard_state_file.scrub)),
            (MARK_PATH, partial(flusher.run_between_syncs, store.scrub_mark)),
            (IDENTITY_PATH, partial(environment.run_blocking, BACKGROUND, identity_files.scrub)),
            (BOOT_PATH, partial(environment.run_blocking, BACKGROUND, boot_file.scrub)),
        )
        self._next_round_at = environment.now() + rest_s
        self._running = False
        self._is_round_requested = False
        self._stopped = False
        self.rewritten = 0
        """Number of copies written anew since the start."""

    def tick(self) -> None:
        """Begin a round if one is due."""
        if (
            not self._running
            and not self._stopped
            and (self._is_round_requested or self._environment.now() >= self._next_round_at)
        ):
            self._running, self._is_round_requested = True, False
            self._run(0)

    def request_round(self) -> None:
        """Begin a round soon, because the content that the files should have has changed."""
        self._is_round_requested = True

    def stop(self) -> None:
        """Stop checking."""
        self._stopped = True

    def _run(self, number: int) -> None:
        path, check = self._steps[number]
        check(partial(self._on_checked, number, path))

    def _on_checked(self, number: int, path: str, result: object) -> None:
        if self._stopped:
            return
        if isinstance(result, BaseException):
            if isinstance(result, OSError) and result.errno not in LACKING:
                result = StorageError(f"scrubbing {path} failed: {result}")
            if not isinstance(result, OSError | BusyError):
                self._driver.retire(result)
                return
        elif isinstance(result, int) and result:
            self.rewritten += result
            logger.warning(
                "node=%s event=rot_mended path=%s copies=%d consequence='written anew from memory'",
                self._node_id,
                path,
                result,
            )
        if number + 1 < len(self._steps):
            self._run(number + 1)
        else:
            self._running = False
            self._next_round_at = self._environment.now() + self._round_pause_s
