"""Leader job that ends locks whose owners have not renewed them in time."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.kernel.jobs import JobHandle

CHECK_PERIOD_S: Final = 10.0
MAX_ROWS: Final = 200
"""Maximum number of locks that one command ends. With the longest names it still fits the smallest segment."""


class EndedLeases:
    """Leader job that ends expired locks every ten seconds; implements `dledger_broker.kernel.jobs.Job`.

    Before the feature is active no locks exist, so it proposes nothing.
    """

    name: Final = "lock_leases"

    def __init__(self, changes: LockChanges) -> None:
        self._changes = changes

    def run(self, handle: JobHandle) -> None:
        """Begin to search for expired locks, every `CHECK_PERIOD_S`."""
        handle.call_later(CHECK_PERIOD_S, partial(self._end_expired, handle))

    def _end_expired(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._end_expired, handle))
        expired = self._changes.expired()
        for begin in range(0, len(expired), MAX_ROWS):
            self._changes.end(expired[begin : begin + MAX_ROWS], handle, _ignore_outcome)


def _ignore_outcome(_error: object) -> None:
    """Ignore the outcome: the next search finds the locks that are still there."""
