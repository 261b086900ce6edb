"""Removes, on workers, the files of what the log dropped (`dledger.store.leftovers`)."""

from __future__ import annotations

from dledger.environment import BACKGROUND, Environment
from dledger.replica.driver import Driver
from dledger.replica.flusher import Flusher
from dledger.store.log import LogStore


class Remover:
    """One removal at a time, after the durable mark was synced."""

    def __init__(self, environment: Environment, store: LogStore, flusher: Flusher, driver: Driver) -> None:
        self._environment = environment
        self._store = store
        self._flusher = flusher
        self._driver = driver
        self._running = False

    def tick(self) -> None:
        """Begin a removal that is due; called after a trim, and a few times a second for what was held then."""
        if not self._running and self._store.leftovers.due:
            self._running = True
            self._flusher.between(self._store.sync_mark, self._mark_synced)

    def _mark_synced(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._driver.fail(result)
        else:
            self._environment.run_blocking(BACKGROUND, self._store.remove_trimmed, self._removed)

    def _removed(self, result: object) -> None:
        self._running = False
        if isinstance(result, BaseException):
            self._driver.fail(result)
