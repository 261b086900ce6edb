"""Commands about leases: messages popped under a lease, and leases that are renewed or end."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dledger_broker.features.pop.commands import Pop
from dledger_broker.kernel.commands import Kinds


class LeasedPop(msgspec.Struct, frozen=True):
    """Command by which a group takes messages that stay hidden while heartbeats of a client come."""

    pop: Pop
    client: str


class RenewedLease(NamedTuple):
    """A client's lease that runs until a group time. Each heartbeat renews it by `length_ms`, or no more if that is
    0.
    """

    client: str
    until_ms: int
    length_ms: int


class RenewLeases(msgspec.Struct, frozen=True):
    """Command that renews leases of clients, or ends them. Leases without messages are ignored."""

    rows: tuple[RenewedLease, ...]


NAME: Final = "leases"
"""Name of the feature. It must never change, because the activation of the feature is recorded under this name."""
LEASE_COMMANDS: Final[Kinds] = {72: LeasedPop, 73: RenewLeases}
