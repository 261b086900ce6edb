"""Due times of deliveries: decides whether a leader may redeliver messages that nobody has acknowledged."""

from __future__ import annotations

import math
from typing import Final

from dledger.environment import Environment
from dledger_broker.features.pop.deliveries import Delivery
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.leadership import Group

NEW_LEADER_S: Final = 10.0
"""Minimum time for which a new leader keeps a delivery hidden that was applied before this node became the ready
leader.
"""


class Dues:
    """Judge of deliveries: due once group time and this leader's own clock have both passed the invisible time.

    The own clock counts from the moment when this leader applied the delivery. Group time alone is not enough:

    1. A message is popped for a minute.
    2. The clocks of a majority jump ahead by an hour, and are believed.
    3. By group time alone, another consumer would get the message while the first works on it.

    A new leader does not know since when an earlier delivery is hidden. It relies on group time and waits
    `NEW_LEADER_S`.
    """

    def __init__(self, env: Environment, clock: GroupClock, group: Group) -> None:
        self._env = env
        self._clock = clock
        self._group = group
        self._ready_in: int | None = None
        self._ready_at = 0.0
        group.listeners.append(self._leadership_changed)
        self._leadership_changed()

    def _leadership_changed(self) -> None:
        ready_in = self._group.term if self._group.ready else None
        if ready_in is not None and ready_in != self._ready_in:
            self._ready_at = self._env.now()
        self._ready_in = ready_in

    def is_due(self, delivery: Delivery) -> bool:
        """Return whether the open messages of a delivery are to be delivered again."""
        now_ms = self._clock.now_ms()
        return now_ms is not None and self.left_ms(delivery, now_ms) <= 0

    def left_ms(self, delivery: Delivery, now_ms: int) -> int:
        """Return for how many milliseconds a delivery is not due at least, at a given group time."""
        now = self._env.now()
        if delivery.applied_at < self._ready_at:
            hidden_s = self._ready_at + NEW_LEADER_S - now
        else:
            hidden_s = delivery.applied_at + delivery.invisible_ms / 1000 - now
        return max(delivery.due_ms - now_ms, math.ceil(hidden_s * 1000))
