"""State of the other members, as the leader knows it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, Protocol

DISK_FULL: Final = 1000
"""The `disk_used` of a replica whose disk has no space for more ordinary entries."""
DISK_SHORT: Final = 1001
"""The `disk_used` of a replica that keeps the rest of its disk for trims, snapshots and units that make room."""

MAX_SILENCE_S: Final = 1.0
"""Maximum age in seconds of a reading of a member's clock."""


class Mode(IntEnum):
    """Mode in which entries are sent to a member."""

    PROBE = 0
    """It is not known where its log joins the leader's: it gets one empty append at a time."""
    STREAM = 1
    """Pipelined, from memory or from the file."""
    SNAPSHOT = 2
    """The member needs entries that the leader no longer has: it gets a snapshot."""


class ClockReading(NamedTuple):
    """Reading of a member's wall clock, in ms since 1970.

    The reading was taken between two moments of the leader's monotonic clock: the question, and the arrival of the
    answer.
    """

    wall_ms: int
    asked_at: float
    told_at: float


class Peer(Protocol):
    """Another member, in the leader's present term."""

    @property
    def mode(self) -> Mode: ...
    @property
    def match_index(self) -> int:
        """Index up to which its log is durable and equal to the leader's; -1 if that is not known."""

    @property
    def contact_at(self) -> float:
        """Time of its last answer in this term, or of the beginning of the term, by the clock that `tick` is given."""

    @property
    def disk_used(self) -> int:
        """Fullness of its disk in 1/1000; `DISK_FULL` if it takes no more ordinary entries."""

    @property
    def healthy(self) -> bool:
        """True if leadership may be transferred to it, because it syncs and applies in time."""

    @property
    def first_position(self) -> int:
        """Position of the beginning of its log; -1 until it has reported that."""

    @property
    def clock(self) -> ClockReading | None:
        """The last reading of its wall clock; None if there is no reading in this term."""
