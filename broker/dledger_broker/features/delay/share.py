"""Share of a job in the bytes of the log. It is limited only while other writers wait for the log.

Each unit puts the job into debt. The job continues once other writers have appended enough bytes, or no writer waits
any more.

Another writer waits if more bytes are above the applied position than this job has in flight. But a producer that sends
its messages one after another has no send in flight when it gets an answer. So a check just after a unit of the job
proves nothing, see `MIN_GAP_S`.
"""

from __future__ import annotations

from typing import Final

from dledger.environment import Environment
from dledger.format import HEADER_BYTES
from dledger.log import Log
from dledger_broker.kernel.machine import BrokerMachine

MIN_GAP_S: Final = 0.02
"""Time in seconds after its own unit before a job may conclude that no other writer waits."""


class LogShare:
    """Bytes of the log that one job has taken, and that other writers have taken since. Use from the event loop."""

    def __init__(self, machine: BrokerMachine, log: Log, env: Environment) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._seen_end = 0
        """End of the log at the last check, advanced by the bytes that this job has taken since."""
        self._in_flight = 0
        self._others_bytes = 0
        """Number of bytes that other writers have taken since the last unit."""
        self._debt = 0
        self._taken_at_s = 0.0

    def begin(self) -> None:
        """Clear the debt when a leader's run begins."""
        self._seen_end, self._debt, self._others_bytes = self._log.end_position, 0, 0

    def take(self, size: int, part: int) -> None:
        """Note a staged unit of `size` bytes. Other writers may take `part` - 1 times as many before the next unit."""
        self._count_others_bytes()
        self._seen_end += size + HEADER_BYTES
        self._in_flight += size + HEADER_BYTES
        self._debt += (part - 1) * size
        self._others_bytes = 0
        self._taken_at_s = self._env.now()

    def settled(self, size: int) -> None:
        """Note that a unit of `size` bytes is applied or lost."""
        self._in_flight -= size + HEADER_BYTES

    @property
    def is_open(self) -> bool:
        """Return whether the job may stage its next unit now."""
        self._count_others_bytes()
        if not self._others_bytes or (self._env.now() - self._taken_at_s >= MIN_GAP_S and not self._is_contended):
            self._debt = 0
        return self._debt == 0

    @property
    def _is_contended(self) -> bool:
        """Return whether other writers wait for the log.

        Positions alone do not show it. The log's own entries, such as a membership change, do not move the applied
        position. That entry, at the end of the log, would count as a waiting send until something else is stored.
        """
        if self._log.end_position - self._machine.applied_position <= self._in_flight:
            return False
        status = self._log.status()
        return status.applied_index < status.last_index

    def _count_others_bytes(self) -> None:
        """Count the bytes that other writers have taken since the last check."""
        end = self._log.end_position
        others_bytes = max(0, end - self._seen_end)
        self._seen_end = max(self._seen_end, end)
        self._others_bytes += others_bytes
        self._debt = max(0, self._debt - others_bytes)
