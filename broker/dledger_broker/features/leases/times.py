"""Times of leases: how long a lease hides a delivery, by group time and by the leader's own clock.

Both must have passed, as for invisible times (`pop.revival.Dues`). A new leader waits `NEW_LEADER_S` for heartbeats:

1. A leader renews leases, and fails.
2. Clients, proxies and nodes find the next leader after a while, and leases seem to run out meanwhile.
3. Without the wait, other consumers get messages on which living clients work.

A lease that its client has left hides nothing more. It has no length, so no leader waits for it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from dledger_broker.features.leases.table import LEASES, MAX_LEASE_MS, LeaseTable
from dledger_broker.features.pop.deliveries import Delivery
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState

NEW_LEADER_S: Final = 30.0
"""Minimum time for which a new leader keeps messages under a lease hidden: three heartbeats of a usual client."""


CONFIRMING_MS: Final = 500
"""Interval after which a delivery is looked at again whose lease is about to begin."""


class LeaseTimes:
    """Judge of deliveries under a lease; implements `pop.revival.HiddenByLease`.

    `confirming` counts the confirmations in flight of each delivery whose lease is about to begin. A confirmation
    counts from its arrival at the leader on, as a heartbeat does.
    """

    def __init__(self, machine: BrokerMachine) -> None:
        self.confirming: Counter[Delivery] = Counter()
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._leases: LeaseTable = state.table(LEASES)

    def hides(self, delivery: Delivery) -> bool:
        return bool(delivery.client) or delivery in self.confirming

    def left_ms(self, delivery: Delivery, now: float, now_ms: int, ready_at: float) -> int:
        """Return for how many milliseconds a lease hides a delivery at least."""
        if delivery in self.confirming:
            return CONFIRMING_MS
        lease = self._leases.get(delivery.client)
        if lease is None:
            return 0  # the delivery is over
        until_ms = min(lease.until_ms, delivery.pop_time_ms + MAX_LEASE_MS)
        hidden_until = lease.renewed_at + lease.length_ms / 1000
        if lease.length_ms and lease.renewed_at < ready_at:
            hidden_until = ready_at + NEW_LEADER_S
        if delivery.applied_at >= ready_at:
            hidden_until = min(hidden_until, delivery.applied_at + MAX_LEASE_MS / 1000)
        return max(until_ms - now_ms, math.ceil((hidden_until - now) * 1000))
