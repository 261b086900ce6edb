"""Commands about popped messages: popped, acknowledged or hidden anew, revived, reset to another offset."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dledger_broker.kernel.commands import Kinds

NAME: Final = "pop"
"""Name of the feature. It must never change, because the activation of the feature is recorded under this name."""
NO_ROW: Final = -1
"""Expected next offset of a queue that the group never popped."""


class PopQueueKey(NamedTuple):
    """Queue as a consumer group pops it."""

    group: str
    topic: str
    queue_id: int


class PopRow(NamedTuple):
    """Effect of a pop on one queue. The row is ignored unless `created_position` and `expected` match.

    `created_position` is the topic's, and `expected` is the group's next offset in the queue. `offsets` are the
    delivered messages, ascending. Other messages below `next_offset` are passed over, because the consumer's filter
    excludes them. `again` is the pop time of the ordered delivery that this delivery replaces, else 0. A row with
    `again` and without offsets ends a delivery, and the group goes back to `next_offset`.
    """

    topic: str
    created_position: int
    queue_id: int
    expected: int
    next_offset: int
    offsets: tuple[int, ...] = ()
    again: int = 0


class Pop(msgspec.Struct, frozen=True):
    """Command by which a group takes messages, hidden from its other members for `invisible_ms` from `pop_time_ms` on.

    The pop time is higher than all earlier pop times of each queue. `attempt_id` is the client's name of an ordered
    pop, or "". A pop with the same name takes the same messages again, and does not count as a further delivery.
    """

    group: str
    pop_time_ms: int
    invisible_ms: int
    rows: tuple[PopRow, ...]
    is_ordered: bool = False
    attempt_id: str = ""


class AckRow(NamedTuple):
    """Messages of one delivery that are acknowledged, as bits. The lowest bit is the delivery's first message.

    With `new_pop_time_ms`, the row has a single message, which is not acknowledged. The message is hidden for
    `invisible_ms` from that time on, as a delivery of its own.
    """

    group: str
    topic: str
    created_position: int
    queue_id: int
    pop_time_ms: int
    bits: int
    new_pop_time_ms: int = 0
    invisible_ms: int = 0


class Ack(msgspec.Struct, frozen=True):
    """Command with acknowledgements and changes of invisible times. Rows of unknown or ended messages are ignored."""

    rows: tuple[AckRow, ...]


class ReviveRow(NamedTuple):
    """Messages of one delivery, as in `AckRow`, that are delivered to the group again."""

    group: str
    topic: str
    created_position: int
    queue_id: int
    pop_time_ms: int
    bits: int


class Revive(msgspec.Struct, frozen=True):
    """Command that closes messages not acknowledged in time. Their copies in retry or dead-letter topics are in the
    same unit.
    """

    rows: tuple[ReviveRow, ...]


class ResetPop(msgspec.Struct, frozen=True):
    """Command by which a group continues at another offset of a queue that it pops. All its deliveries there end."""

    group: str
    topic: str
    created_position: int
    queue_id: int
    offset: int


POP_COMMANDS: Final[Kinds] = {48: Pop, 49: Ack, 50: Revive, 51: ResetPop}
