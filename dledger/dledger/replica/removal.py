"""Remover: deletes, on workers, the files that the log dropped (`dledger.store.leftovers`)."""

from __future__ import annotations

from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError
from dledger.replica.driver import Driver
from dledger.replica.flusher import Flusher
from dledger.store.log import LogStore


class Remover:
    """Makes one removal at a time, each after the durable mark was synced."""

    def __init__(self, environment: Environment, store: LogStore, flusher: Flusher, driver: Driver) -> None:
        self._environment = environment
        self._store = store
        self._flusher = flusher
        self._driver = driver
        self._is_running = False

    def tick(self) -> None:
        """Begin a removal that is due.

        Called after a trim, and a few times a second for files that were still in use then.
        """
        if not self._is_running and self._store.leftovers.due:
            self._is_running = True
            self._flusher.run_between_syncs(self._store.sync_mark, self._on_mark_synced)

    def _on_mark_synced(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._driver.fail(result)
        else:
            self._environment.run_blocking(BACKGROUND, self._store.remove_trimmed, self._on_removed)

    def _on_removed(self, result: object) -> None:
        self._is_running = False
        if isinstance(result, BaseException) and not isinstance(result, BusyError):
            self._driver.fail(result)
