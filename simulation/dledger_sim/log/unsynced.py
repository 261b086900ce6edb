"""Judge of `flush = "async"`: a leader stops acknowledging if an older acknowledged entry stays unsynced for too long.

An acknowledged entry is settled once the disks of a majority have it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dledger.replica.storing.flush_bound import BOUND_S
from dledger_sim.log.violation import require

if TYPE_CHECKING:
    from dledger.types import ReplicaId
    from dledger_sim.log.life import Life

SLACK_S = BOUND_S
"""Tolerance in seconds: a member that comes back acknowledges before the leader knows what is on its disk."""
UNTOLD_S = 1.0
"""Time for which a new leader believes other members, in seconds.

The leader does not know yet which members report their disk.
"""


class Unsynced:
    """Record of what leaders have acknowledged and what disks have. `observe` is called after every event."""

    def __init__(self) -> None:
        self._durable_indexes: dict[ReplicaId, int] = {}
        """Last durable entry of each member, as of the member's last event."""
        self._leadership: tuple[Life, int] | None = None
        self._leads_since = 0.0
        self._last_applied = -1
        self._acknowledged: deque[tuple[float, int]] = deque()
        """Acknowledgements that are not settled: time by the leader's clock, and last entry."""

    def observe(self, life: Life) -> None:
        """Check a node after an event."""
        replica = life.replica
        self._durable_indexes[life.replica_id] = replica.store.durable
        if not replica.is_ready:
            return
        leads, now = (life, replica.engine.term), life.environment.clock
        if leads != self._leadership:
            self._leadership, self._leads_since = leads, now
            self._last_applied = replica.applied_index
            self._acknowledged.clear()
        if replica.applied_index == self._last_applied and not self._acknowledged:
            return
        # An entry on the disks of a majority is settled, also if the members change afterwards.
        voters = replica.engine.membership.voters
        durable = sorted((self._durable_indexes.get(voter, -1) for voter in voters), reverse=True)[len(voters) // 2]
        while self._acknowledged and self._acknowledged[0][1] <= durable:
            self._acknowledged.popleft()
        if replica.applied_index == self._last_applied:
            return
        at, oldest = self._acknowledged[0] if self._acknowledged else (now, -1)
        require(
            now - at < BOUND_S + SLACK_S + life.environment.ahead_s or now - self._leads_since < UNTOLD_S,
            "nothing is acknowledged while an old acknowledged entry is on no majority's disks",
            leader=life.node.name,
            entry=oldest,
            acknowledged=replica.applied_index,
            seconds=now - at,
            durable=durable,
        )
        self._last_applied = replica.applied_index
        self._acknowledged.append((now, replica.applied_index))
