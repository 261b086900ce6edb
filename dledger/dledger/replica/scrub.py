"""Re-reads the small files that hold what this replica promised, and writes anew what rotted.

Each of identity, durable mark, and term and vote stands on the disk twice, and memory knows what they say: a copy that
rots while the node runs is put right before the other one can rot as well.  So is the record of the start, which stands
there once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from dledger.environment import BACKGROUND, HARD_STATE, Environment
from dledger.errors import BusyError, StorageError
from dledger.replica.boot import PATH as BOOT_PATH
from dledger.replica.boot import BootFile
from dledger.replica.driver import Driver
from dledger.replica.flusher import Flusher
from dledger.store.disk import FULL
from dledger.store.hardstate import PATH as HARD_STATE_PATH
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import PATH as IDENTITY_PATH
from dledger.store.log import LogStore
from dledger.store.mark import PATH as MARK_PATH

logger = logging.getLogger(__name__)

Done = Callable[[object], None]
Step = tuple[str, Callable[[Done], None]]
"""A file, and what has a worker look at it: that calls with how many copies were written anew, or with an exception."""


class PromiseScrub:
    """Looks at one file after the other, each on the lane on which it is written; `tick` begins a round that is due.

    The mark is looked at between two syncs: the end of a sync writes it on the event loop, which would wait for the
    lock that a look holds while it reads the disk.

    `scrub_identity()` returns the paths that it has written anew.  `rest_s` is the pause between two rounds.
    """

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        store: LogStore,
        hard_state_file: HardStateFile,
        scrub_identity: Callable[[], Sequence[str]],
        boot_file: BootFile,
        flusher: Flusher,
        driver: Driver,
        *,
        rest_s: float,
    ) -> None:
        self._node_id = node_id
        self._environment = environment
        self._scrub_identity = scrub_identity
        self._driver = driver
        self._rest_s = rest_s
        self._steps: tuple[Step, ...] = (
            (HARD_STATE_PATH, partial(environment.run_blocking, HARD_STATE, hard_state_file.scrub)),
            (MARK_PATH, partial(flusher.between, store.scrub_mark)),
            (IDENTITY_PATH, partial(environment.run_blocking, BACKGROUND, self._mend_identity)),
            (BOOT_PATH, partial(environment.run_blocking, BACKGROUND, boot_file.scrub)),
        )
        self._at = environment.now() + rest_s
        self._running = False
        self._stopped = False
        self.rewritten = 0
        """Copies written anew since the start."""

    def _mend_identity(self) -> int:
        return len(self._scrub_identity())

    def tick(self) -> None:
        """Begin a round if one is due."""
        if not self._running and not self._stopped and self._environment.now() >= self._at:
            self._running = True
            self._run(0)

    def stop(self) -> None:
        """Look at nothing more."""
        self._stopped = True

    def _run(self, number: int) -> None:
        path, look = self._steps[number]
        look(partial(self._done, number, path))

    def _done(self, number: int, path: str, result: object) -> None:
        if self._stopped:
            return
        if isinstance(result, BaseException):
            if isinstance(result, OSError) and result.errno not in FULL:
                result = StorageError(f"scrubbing {path} failed: {result}")
            if not isinstance(result, OSError | BusyError):
                self._driver.fail(result)
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
            self._at = self._environment.now() + self._rest_s
