"""Commands about popped messages: taken, acknowledged or hidden anew, revived, started over at another offset."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dledger_broker.kernel.commands import Kinds

NAME: Final = "pop"
"""Name of the feature, which is never another one: it is recorded when it is activated."""
NO_ROW: Final = -1
"""Expected next offset of a queue that the group never popped."""


class PopQueueKey(NamedTuple):
    """A queue as a consumer group pops it."""

    group: str
    topic: str
    queue_id: int


class PopRow(NamedTuple):
    """What one pop does in one queue. It does nothing unless the topic is that of `created_position`, and the group's
    next offset there is `expected`.

    `offsets` are the messages that are delivered, ascending; others below `next_offset` are passed over, for the
    consumer does not want them. `again` is the pop time of the delivery in order whose messages these are, else 0.
    """

    topic: str
    created_position: int
    queue_id: int
    expected: int
    next_offset: int
    offsets: tuple[int, ...] = ()
    again: int = 0


class Pop(msgspec.Struct, frozen=True):
    """A group takes messages, hidden from its other members for `invisible_ms` from `pop_time_ms` on.

    In each queue the pop time is higher than all before. `attempt_id` is the client's name of a pop in order, "" for
    none: the same one takes the same messages again, and that counts as no further delivery.
    """

    group: str
    pop_time_ms: int
    invisible_ms: int
    rows: tuple[PopRow, ...]
    is_ordered: bool = False
    attempt_id: str = ""


class AckRow(NamedTuple):
    """Messages of one delivery that are done with, as bits: the lowest is the delivery's first message.

    With a `new_pop_time_ms` there is one, and it is not done with, but hidden for `invisible_ms` from then on, as a
    delivery of its own.
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
    """Acknowledgements, and changes of invisible times; what is unknown or ended stays as it is."""

    rows: tuple[AckRow, ...]


class ReviveRow(NamedTuple):
    """Messages of one delivery, as in `AckRow`, that the group is to get again."""

    group: str
    topic: str
    created_position: int
    queue_id: int
    pop_time_ms: int
    bits: int


class Revive(msgspec.Struct, frozen=True):
    """Messages that nobody acknowledged in time: copies in retry topics or dead letters stand in the same unit."""

    rows: tuple[ReviveRow, ...]


class ResetPop(msgspec.Struct, frozen=True):
    """A group goes on at another offset of a queue that it pops, and all its deliveries there end."""

    group: str
    topic: str
    created_position: int
    queue_id: int
    offset: int


POP_COMMANDS: Final[Kinds] = {48: Pop, 49: Ack, 50: Revive, 51: ResetPop}
