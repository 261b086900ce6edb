"""Leader job of retention: decides which part of the log to drop, soon after it is ready, and then every ten
seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from dledger.environment import Environment
from dledger.log import Log
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.retention.policy import (
    RetentionPolicy,
    choose_trim,
    clocks_agree,
    fullest_disk_ratio,
    parts_of_trim,
)
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.jobs import Job, JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.segment_ages import SegmentAges

CHECK_PERIOD_S: Final = 10.0
FIRST_CHECK_S: Final = 1.0
"""Delay of a new leader's first check. By then other nodes have reported how full their disks are, and the time of
their clocks. It should not wait longer, because full disks may be the reason for repeated changes of leadership.
"""

_logger = logging.getLogger(__name__)


class Forecast(NamedTuple):
    """Forecast for the oldest segment: its size, its expiry by age, and the growth of the log until its expiry by size.

    A value of 0 means unknown, or no limit. `is_held` is True if a pin or an open transaction needs the segment.
    """

    size: int
    due_ms: int
    growth_bytes: int
    is_held: bool


NOTHING_GOES: Final = Forecast(0, 0, 0, is_held=False)


class WaitsInTheLog(Protocol):
    """Messages that wait in the log until they are due, and are moved before a trim."""

    def is_free_below(self, position: int) -> bool:
        """Return whether no waiting message lies below a position any more."""

    def room_needed(self) -> int:
        """Return the number of bytes that have to be written before more of the log can be trimmed."""

    def request(self, position: int, *, disk_full: bool, give_up: bool = False) -> None:
        """Have waiting messages moved from below a position, or from nowhere if it is 0. Called on the leader.

        With `disk_full` that happens without delay, and with `give_up` at any price.
        """


class Retention(Part):
    """Leader job that has the log trimmed by the current `policy()`; implements `dledger_broker.kernel.jobs.Job`."""

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
        """Take the parts of this node as `parts`. Each part may need the log from some position on."""
        self.policy = policy
        self.trimming = Trimming(machine, counters)
        self._machine = machine
        self._log = log
        self._env = env
        self._pins = pins
        self._waiting = waiting
        self._counters = counters
        self._parts = parts
        self._overridden: tuple[int, int] | None = None
        """Pin and position of the last trim that dropped pinned expired messages because of a full disk."""
        self._ages = SegmentAges(log, lambda: machine.applied_position)

    def start(self) -> None:
        self._log.watch_disk(lambda: self.policy().disk_max_used_ratio, self._waiting.room_needed)

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge(
                "retention_next_bytes",
                "Size of the oldest segment, which retention deletes next; 0 while the log has one segment (leader)",
                lambda: self.forecast().size,
            ),
            Gauge(
                "retention_next_due_seconds",
                "Unix time at which the oldest segment expires by retention_hours; 0 if that is not known (leader)",
                lambda: self.forecast().due_ms / 1000,
            ),
            Gauge(
                "retention_next_growth_bytes",
                "Growth of the log after which the oldest segment expires by retention_bytes; 0 without that limit "
                "(leader)",
                lambda: self.forecast().growth_bytes,
            ),
            Gauge(
                "retention_next_held",
                "1 if a pin or an open transaction keeps the oldest segment (leader)",
                lambda: int(self.forecast().is_held),
            ),
        )

    def forecast(self) -> Forecast:
        """Return the forecast for the oldest segment, or `NOTHING_GOES` on a node that does not lead."""
        log, policy = self._log, self.policy()
        first, segment_bytes = log.first_position, log.segment_bytes
        end = first - first % segment_bytes + segment_bytes
        if not log.is_ready or log.end_position <= end:  # The segment that is being written stays.
            return NOTHING_GOES
        newest_ms = self._ages.newest_ms(first)
        growth = policy.max_log_bytes - (log.end_position - first)
        held_from = [
            position for position in (self._pins.lowest(self._env.wall_ms()), self._needed()) if position is not None
        ]
        return Forecast(
            size=end - first,
            due_ms=0 if newest_ms is None else newest_ms + policy.max_age_ms,
            growth_bytes=max(growth, 1) if policy.max_log_bytes else 0,
            is_held=min(held_from, default=end) < end,
        )

    @property
    def jobs(self) -> Sequence[Job]:
        return (self,)

    def run(self, handle: JobHandle) -> None:
        """Begin to check every ten seconds. At once complete a trim that an earlier leader began."""
        self._complete(handle)
        handle.call_later(FIRST_CHECK_S, partial(self._check_regularly, handle))

    def _check_regularly(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._check_regularly, handle))
        self.check(handle)

    def check(self, handle: JobHandle) -> None:
        """Trim if it is time and no trim is under way."""
        self._complete(handle)
        if clocks_agree(self._log.status()):
            trim = partial(self._trim_if_due, handle)
            self._ages.find_expired_later(handle, self._env.wall_ms(), self.policy().max_age_ms, trim)
        else:
            self._trim_if_due(handle, 0)

    def _trim_if_due(self, handle: JobHandle, expired_before: int) -> None:
        if self.trimming.is_busy:
            return
        pinned, policy = self._pins.lowest(self._env.wall_ms()), self.policy()
        segments, disk_ratio = self._log.segments(), fullest_disk_ratio(self._log.status())
        choose = partial(
            choose_trim,
            segments,
            self._log.trim_candidates(),
            expired_before=expired_before,
            disk_ratio=disk_ratio,
            pinned=pinned,
            needed=self._needed(),
        )
        position = choose(policy)
        wanted = choose(policy.ahead()) if position is None else position
        disk_full = disk_ratio > policy.disk_max_used_ratio
        self._waiting.request(wanted or 0, disk_full=disk_full, give_up=policy.deletes_oldest(disk_ratio))
        if position is not None and self._waiting.is_free_below(position):
            if pinned is not None and position > pinned and self._overridden != (pinned, position):
                self._overridden = pinned, position  # A trim that the log refuses is tried again, but counts once.
                self._counters.pins_overridden += 1
                _logger.warning(
                    "event=pin_overridden position=%d pinned=%d "
                    "reason='the disk is above disk_max_used_ratio, and the pinned messages have expired'",
                    position,
                    pinned,
                )
            for part in self._parts:
                part.trims_below(position)
            parts = parts_of_trim(segments, policy, expired_before=expired_before, position=position)
            self.trimming.trim(handle, position, parts)

    def _needed(self) -> int | None:
        """Return the lowest position from which on a part needs the log, or None."""
        return min((needed for part in self._parts if (needed := part.needs_from) is not None), default=None)

    def _complete(self, handle: JobHandle) -> None:
        """Complete a trim that reached the queues but not the log, because its leader was lost or the log's trim
        failed.

        Some queues may have missed it, too, so the trim begins anew. It stops at pins, and at positions that parts
        need, even if the first attempt overrode them.
        """
        if self.trimming.is_busy:
            return
        trimmed_before, first = self._machine.state.trims.before, self._log.first_position
        pinned = self._pins.lowest(self._env.wall_ms())
        limit = min(bound for bound in (trimmed_before, pinned, self._needed()) if bound is not None)
        candidates = [position for position in self._log.trim_candidates() if first < position <= limit]
        if candidates and self._waiting.is_free_below(max(candidates)):
            self.trimming.trim(handle, max(candidates))
