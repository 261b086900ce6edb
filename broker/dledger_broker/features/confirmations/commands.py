"""Commands about confirmations: deliveries that have reached their client come under its lease."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dledger_broker.kernel.commands import Kinds


class DeliveryRow(NamedTuple):
    """Delivery of a queue to a group, of a topic that was created at this position."""

    topic: str
    created_position: int
    queue_id: int
    pop_time_ms: int


class ConfirmLease(msgspec.Struct, frozen=True):
    """Command by which deliveries of a group come under the lease of a client, which then runs until `until_ms`.

    Rows of deliveries that are over or leased are ignored. Without a row that has an effect, the lease stays as it is.
    """

    client: str
    group: str
    until_ms: int
    length_ms: int
    rows: tuple[DeliveryRow, ...]


NAME: Final = "confirmations"
"""Name of the feature. It must never change, because the activation of the feature is recorded under this name."""
CONFIRMATION_COMMANDS: Final[Kinds] = {76: ConfirmLease}
