"""Reserver: reserves space for entries before they are written, on workers. Entries that arrive too early wait.

A leader's entries wait sealed (`dledger.replica.leading`), a follower's appends wait in the inbox. That is rare,
because more space is reserved as soon as little is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dledger.environment import URGENT, Environment
from dledger.errors import LogFullError
from dledger.replica.driver import Driver
from dledger.replica.standing import Standing
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta

AHEAD_S = 4.0
"""Additional seconds for a reservation that nothing waits for yet. A file system may have to write zeros for it."""


class Reserver:
    """Reservations of disk space: what is reserved, and whether the disk had space for more."""

    def __init__(self, environment: Environment, store: LogStore, standing: Standing, driver: Driver) -> None:
        self._environment = environment
        self._store = store
        self._standing = standing
        self._driver = driver
        self._missing_space: Need | None = None
        """The space that could not be reserved at the last attempt."""
        self._is_reserving = False
        self._began_at = 0.0
        self._wait_started_at: dict[int, float] = {}
        """Start times of the reservations that entries wait for, by number."""
        self._wait_number = 0

    @property
    def outstanding_s(self) -> float:
        """Seconds for which entries have waited for the disk, or will have soon; 0 if the disk answers.

        Everything that delays a reservation counts: a step of zeros, or the renaming of a recycled segment.
        """
        now = self._environment.now()
        waited_s = now - min(self._wait_started_at.values()) if self._wait_started_at else 0.0
        return max(0.0, waited_s, now - self._began_at - AHEAD_S if self._is_reserving else 0.0)

    @property
    def is_full(self) -> bool:
        """True if the disk had no space at the last reservation."""
        return self._missing_space is not None

    def has(self, need: Need) -> bool:
        """Return whether so much is reserved. If not, have a worker reserve it."""
        if self._store.has(need):
            return True
        self._start_reserving(need)
        return False

    def has_room(self, end: int) -> bool:
        """Return whether ordinary entries can follow those that end at `end`, as far as that is known."""
        return self._store.has_room_behind(end) or self.has(self._store.room_behind(end)) or not self.is_full

    def claim(self, metas: Sequence[EntryMeta], *, privileged: bool) -> bool:
        """Claim reserved space as `LogStore.claim` does. If the result is False, `wait` and claim again."""
        return self._store.claim(metas, privileged=privileged)

    def wait(
        self, metas: Sequence[EntryMeta], done: Callable[[LogFullError | None], None], *, privileged: bool
    ) -> None:
        """Call `done(None)` once there is space for entries, or `done(error)` if there is none.

        By then another entry may have taken the space, or the log may have been rewritten.
        """
        need = self._store.need_for(metas, privileged=privileged)
        self._wait_number += 1
        self._wait_started_at[self._wait_number] = self._environment.now()
        reserved = partial(self._on_wait_done, self._wait_number, done)
        self._environment.run_blocking(URGENT, partial(self._store.reserve, need), reserved)

    def _on_wait_done(self, number: int, done: Callable[[LogFullError | None], None], result: object) -> None:
        del self._wait_started_at[number]
        if self._standing.is_stopped:
            return
        if isinstance(result, BaseException) and not isinstance(result, LogFullError):
            self._driver.fail(result)
            return
        done(result if isinstance(result, LogFullError) else None)

    def retry(self) -> None:
        """Try again to reserve the space that was lacking."""
        if self._missing_space is not None:
            self._start_reserving(self._missing_space)

    def _start_reserving(self, need: Need) -> None:
        """Have the space reserved, unless a worker is busy. The caller asks for it again."""
        if not self._is_reserving:
            self._is_reserving = True
            self._began_at = self._environment.now()
            work = partial(self._store.reserve, need)
            self._environment.run_blocking(URGENT, work, partial(self._on_reserved, need))

    def _on_reserved(self, need: Need, result: object) -> None:
        self._is_reserving = False
        if isinstance(result, LogFullError):
            self._missing_space = need
        elif isinstance(result, BaseException):
            self._driver.fail(result)
        elif self._missing_space is not None and (need == self._missing_space or self._store.has(self._missing_space)):
            self._missing_space = None
