"""Job that ends the locks whose owners have not renewed them in time."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.kernel.jobs import JobHandle

CHECK_PERIOD_S: Final = 10.0
MAX_ROWS: Final = 200
"""Locks that one command ends: with the longest names within the smallest segment."""


class EndedLeases:
    """Looks every ten seconds; implements `dledger_broker.kernel.jobs.Job`. Before locks are active there are none."""

    name: Final = "lock_leases"

    def __init__(self, changes: LockChanges) -> None:
        self._changes = changes

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        handle.call_later(CHECK_PERIOD_S, partial(self._look, handle))

    def _look(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._look, handle))
        expired = self._changes.expired()
        for begin in range(0, len(expired), MAX_ROWS):
            self._changes.end(expired[begin : begin + MAX_ROWS], handle, _tried_again)


def _tried_again(_error: object) -> None:
    """The next look finds what is still there."""
