"""Reserves space for entries before they are written, on workers: those that come too early wait.

A leader's entries wait sealed (`dledger.replica.leading`), a follower's appends in the inbox.  That happens rarely, for
space is reserved anew as soon as little is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dledger.environment import URGENT, Environment
from dledger.errors import LogFullError
from dledger.replica.driver import Driver
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta


class Reserver:
    """What is reserved of the disk, and whether more could be."""

    def __init__(self, environment: Environment, store: LogStore, driver: Driver) -> None:
        self._environment = environment
        self._store = store
        self._driver = driver
        self._lacking: Need | None = None
        """What could not be reserved, when that was tried last."""
        self._reserving = False

    @property
    def is_full(self) -> bool:
        """Whether the disk had no space when some was reserved last."""
        return self._lacking is not None

    def has(self, need: Need) -> bool:
        """Whether so much is reserved; if not, a worker sees to it."""
        if self._store.has(need):
            return True
        self._see_to(need)
        return False

    def has_room(self, end: int) -> bool:
        """Whether ordinary entries can follow those that end at `end`, as far as it is known."""
        return self.has(self._store.room_behind(end)) or not self.is_full

    def claim(self, metas: Sequence[EntryMeta], *, privileged: bool) -> bool:
        """See `LogStore.claim`; if it is False, `wait` and claim again."""
        return self._store.claim(metas, privileged=privileged)

    def wait(
        self, metas: Sequence[EntryMeta], done: Callable[[LogFullError | None], None], *, privileged: bool
    ) -> None:
        """Call `done(None)` once there is space for entries, or `done(error)` if there is none.

        By then another entry may have taken it, or the log have been rewritten.
        """
        need = self._store.need_for(metas, privileged=privileged)
        self._environment.run_blocking(URGENT, partial(self._store.reserve, need), partial(self._waited, done))

    def _waited(self, done: Callable[[LogFullError | None], None], result: object) -> None:
        if self._driver.is_stopped:
            return
        if isinstance(result, BaseException) and not isinstance(result, LogFullError):
            self._driver.fail(result)
            return
        done(result if isinstance(result, LogFullError) else None)

    def retry(self) -> None:
        """Look whether there is space again, if there was none."""
        if self._lacking is not None:
            self._see_to(self._lacking)

    def _see_to(self, need: Need) -> None:
        """Have it reserved, unless a worker is at it; it is asked for again."""
        if not self._reserving:
            self._reserving = True
            work = partial(self._store.reserve, need)
            self._environment.run_blocking(URGENT, work, partial(self._reserved, need))

    def _reserved(self, need: Need, result: object) -> None:
        self._reserving = False
        if isinstance(result, LogFullError):
            self._lacking = need
        elif isinstance(result, BaseException):
            self._driver.fail(result)
        elif self._lacking is not None and (need == self._lacking or self._store.has(self._lacking)):
            self._lacking = None
