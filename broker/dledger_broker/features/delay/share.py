"""Share of a job in the log's bytes: all of them while nobody else waits for the log, else a part.

A unit of a job that got its bytes puts it into debt: it goes on once others have got theirs, or nobody waits any more.
What the applied position has not reached waits for a majority; whoever sends one message at a time has none there in
the moment in which it is answered, so that a glance right behind a unit of one's own says nothing.
"""

from __future__ import annotations

from typing import Final

from dledger.environment import Environment
from dledger.format import HEADER_BYTES
from dledger.log import Log
from dledger_broker.kernel.machine import BrokerMachine

GLANCE_S: Final = 0.02
"""So long after a unit of its own a job believes that nobody waits."""


class LogShare:
    """What one job has taken, and others since. Use from the event loop."""

    def __init__(self, machine: BrokerMachine, log: Log, env: Environment) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._seen = 0
        """Where the log ended at the last look, with what this job has taken since."""
        self._in_flight = 0
        self._others = 0
        """Bytes of others since the last unit."""
        self._debt = 0
        self._took_at = 0.0

    def begin(self) -> None:
        """A leader begins: nobody owes anything."""
        self._seen, self._debt, self._others = self._log.end_position, 0, 0

    def take(self, size: int, part: int) -> None:
        """A unit of `size` bytes was staged; others may have `part` - 1 times as many before the next."""
        self._look()
        self._seen += size + HEADER_BYTES
        self._in_flight += size + HEADER_BYTES
        self._debt += (part - 1) * size
        self._others = 0
        self._took_at = self._env.now()

    def settled(self, size: int) -> None:
        """A unit of that size is applied, or lost."""
        self._in_flight -= size + HEADER_BYTES

    @property
    def is_open(self) -> bool:
        """Whether the job may have its next unit now."""
        self._look()
        if not self._others or (self._env.now() - self._took_at >= GLANCE_S and not self._others_wait):
            self._debt = 0
        return self._debt == 0

    @property
    def _others_wait(self) -> bool:
        return self._log.end_position - self._machine.applied_position > self._in_flight

    def _look(self) -> None:
        """Count what others have got since the last look."""
        end = self._log.end_position
        others = max(0, end - self._seen)
        self._seen = max(self._seen, end)
        self._others += others
        self._debt = max(0, self._debt - others)
