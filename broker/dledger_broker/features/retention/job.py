"""Looks at what retention lets go, by the leader: every ten seconds, and as soon as it leads.

It also ends the leases of pins, which keep what their readers still need unless a disk is too full.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger.environment import Cancellable, Environment
from dledger.log import Log
from dledger.statemachine import Leadership
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.table import DeletePins
from dledger_broker.features.retention.policy import RetentionPolicy, choose_trim, clocks_agree, fullest_disk_ratio
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.segment_ages import SegmentAges

CHECK_PERIOD_S: Final = 10.0

_logger = logging.getLogger(__name__)


class Retention(Part):
    """Looks every ten seconds, while this node leads, for what `policy` lets go."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        pins: ProposedPins,
        policy: RetentionPolicy | None = None,
        counters: BrokerCounters | None = None,
    ) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self.pins = pins
        self.policy = policy or RetentionPolicy()
        self._counters = counters or BrokerCounters()
        self.trimming = Trimming(machine, log, env)
        self._ages = SegmentAges(log, env, lambda: machine.applied_position)
        self._timer: Cancellable | None = None
        machine.on_leadership_changed.append(self._on_leadership)

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._env.call_later(CHECK_PERIOD_S, self._on_timer)

    def stop(self) -> None:
        """Stop looking; a trim under way goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """Trim if it is time and nothing is under way."""
        if self.trimming.is_busy or not self._log.is_ready:
            return
        self._end_leases()
        self._complete()
        if clocks_agree(self._log.status()):
            self._ages.ask_expired(self._env.wall_ms(), self.policy.max_age_ms, self._trim_if_due)
        else:
            self._trim_if_due(0)

    def _trim_if_due(self, expired_before: int) -> None:
        if self.trimming.is_busy or not self._log.is_ready:
            return
        pinned = self.pins.lowest(self._env.wall_ms())
        position = choose_trim(
            self._log.segments(),
            self._log.trim_candidates(),
            self.policy,
            expired_before=expired_before,
            disk_ratio=fullest_disk_ratio(self._log.status()),
            pinned=pinned,
        )
        if position is not None:
            if pinned is not None and position > pinned:
                self._counters.pins_overridden += 1
                _logger.warning(
                    "event=pin_overridden position=%d pinned=%d reason='the disk is too full'", position, pinned
                )
            self.trimming.trim(position)

    def _complete(self) -> None:
        """Go on with a trim of which queues were told and the log was not, because its leader was lost or it failed.

        It may not have come to all queues either, so it begins anew; not above a pin, which a full disk overrode.
        """
        if self.trimming.is_busy:
            return
        told, first = self._machine.state.trims.before, self._log.first_position
        pinned = self.pins.lowest(self._env.wall_ms())
        limit = told if pinned is None else min(told, pinned)
        left = [position for position in self._log.trim_candidates() if first < position <= limit]
        if left:
            self.trimming.trim(max(left))

    def _end_leases(self) -> None:
        """Give up the pins that nobody has renewed."""
        names = self.pins.expired(self._env.wall_ms())
        if names and self._machine.understood_by_all(DeletePins):
            self.pins.delete(names, _tried_again)

    def _on_leadership(self, leadership: Leadership) -> None:
        if leadership.ready:
            self._complete()

    def _on_timer(self) -> None:
        self._timer = self._env.call_later(CHECK_PERIOD_S, self._on_timer)
        self.check()


def _tried_again(_error: object) -> None:
    """The next look finds what is still there."""
