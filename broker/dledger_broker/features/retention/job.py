"""Job of retention: a leader looks what it lets go, soon after it is ready, and then every ten seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from dledger.environment import Environment
from dledger.log import Log
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.retention.policy import RetentionPolicy, choose_trim, clocks_agree, fullest_disk_ratio
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.jobs import Job, JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.segment_ages import SegmentAges

CHECK_PERIOD_S: Final = 10.0
FIRST_CHECK_S: Final = 1.0
"""A leader has heard by then how full other disks are, and what time it is there. It should not wait longer: full disks
may be the reason why leaders change all the time.
"""

_logger = logging.getLogger(__name__)


class WaitsInTheLog(Protocol):
    """What is in the log until it is due, and is moved before a trim."""

    def is_free_below(self, position: int) -> bool:
        """Whether nothing of it lies below a position any more."""

    def want(self, position: int, *, disk_full: bool) -> None:
        """Leader: have it moved from below a position; 0 if that is not wanted. `disk_full`: or given up."""


class Retention(Part):
    """Has the log trimmed as `policy()` says then, a leader's job; implements `dledger_broker.kernel.jobs.Job`."""

    name: Final = "retention"

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        pins: ProposedPins,
        waiting: WaitsInTheLog,
        policy: Callable[[], RetentionPolicy],
        counters: BrokerCounters,
        parts: Iterable[Part] = (),
    ) -> None:
        """`parts` are those of this node, each of which may need the log from some position on."""
        self.policy = policy
        self.trimming = Trimming(machine)
        self._machine = machine
        self._log = log
        self._env = env
        self._pins = pins
        self._waiting = waiting
        self._counters = counters
        self._parts = parts
        self._overridden: tuple[int, int] | None = None
        """The pin and the position of the last trim that a full disk had take what the pin keeps."""
        self._ages = SegmentAges(log, lambda: machine.applied_position)

    @property
    def jobs(self) -> Sequence[Job]:
        """See `Part.jobs`."""
        return (self,)

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`: what an earlier leader has begun is completed at once."""
        self._complete(handle)
        handle.call_later(FIRST_CHECK_S, partial(self._look, handle))

    def _look(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._look, handle))
        self.check(handle)

    def check(self, handle: JobHandle) -> None:
        """Trim if it is time and nothing is under way."""
        self._complete(handle)
        if clocks_agree(self._log.status()):
            tell = partial(self._trim_if_due, handle)
            self._ages.ask_expired(handle, self._env.wall_ms(), self.policy().max_age_ms, tell)
        else:
            self._trim_if_due(handle, 0)

    def _trim_if_due(self, handle: JobHandle, expired_before: int) -> None:
        if self.trimming.is_busy:
            return
        pinned = self._pins.lowest(self._env.wall_ms())
        needed = self._needed()
        disk_ratio = fullest_disk_ratio(self._log.status())
        choose = partial(
            choose_trim,
            self._log.segments(),
            self._log.trim_candidates(),
            expired_before=expired_before,
            disk_ratio=disk_ratio,
            pinned=min((one for one in (pinned, needed) if one is not None), default=None),
        )
        policy = self.policy()
        position = choose(policy)
        wanted = choose(policy.ahead()) if position is None else position
        self._waiting.want(wanted or 0, disk_full=disk_ratio > policy.disk_max_used_ratio)
        if position is not None and self._waiting.is_free_below(position):
            if pinned is not None and position > pinned and self._overridden != (pinned, position):
                self._overridden = pinned, position  # what the log refuses is tried again, and is one trim
                self._counters.pins_overridden += 1
                _logger.warning(
                    "event=pin_overridden position=%d pinned=%d reason='the disk is too full'", position, pinned
                )
            for part in self._parts:
                if part.needs_from is not None and position > part.needs_from:
                    part.overridden(position)
            self.trimming.trim(handle, position)

    def _needed(self) -> int | None:
        """The position from which on parts need the log."""
        return min((needed for part in self._parts if (needed := part.needs_from) is not None), default=None)

    def _complete(self, handle: JobHandle) -> None:
        """Go on with a trim of which queues were told and the log was not, because its leader was lost or it failed.

        It may not have come to all queues either, so it begins anew; not above a pin, which a full disk overrode.
        """
        if self.trimming.is_busy:
            return
        told, first = self._machine.state.trims.before, self._log.first_position
        pinned = self._pins.lowest(self._env.wall_ms())
        limit = min(one for one in (told, pinned, self._needed()) if one is not None)
        left = [position for position in self._log.trim_candidates() if first < position <= limit]
        if left and self._waiting.is_free_below(max(left)):
            self.trimming.trim(handle, max(left))
