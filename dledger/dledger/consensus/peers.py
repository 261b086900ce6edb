"""Other members, as a leader's engine knows them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, Protocol

DISK_FULL: Final = 1000
"""The `disk_used` of a replica that takes no more ordinary entries."""

MAX_SILENCE_S: Final = 1.0
"""What a member's clock showed longer ago tells nothing of it."""


class Mode(IntEnum):
    """How entries are sent to a member."""

    PROBE = 0
    """Where its log ends is not known; one empty append at a time."""
    STREAM = 1
    """Pipelined, from memory or from the file."""
    SNAPSHOT = 2
    """It needs entries that are gone; a snapshot is on its way."""


class ClockReading(NamedTuple):
    """What a member's wall clock showed, in ms since 1970, at some moment between two of the leader's monotonic clock:
    when the member was asked, and when its answer was read.
    """

    wall_ms: int
    asked_at: float
    told_at: float


class Peer(Protocol):
    """One other member, in the present term of leadership."""

    @property
    def mode(self) -> Mode: ...
    @property
    def match_index(self) -> int:
        """Durable there and equal to ours; -1 if nothing is known to be."""

    @property
    def contact_at(self) -> float:
        """When it last answered in this term, or when the term began; in seconds of the clock that `tick` is given."""

    @property
    def disk_used(self) -> int:
        """How full its disk is, in 1/1000; `DISK_FULL` if it takes no more ordinary entries."""

    @property
    def healthy(self) -> bool:
        """Whether it may be handed leadership: it syncs and applies in time."""

    @property
    def clock(self) -> ClockReading | None:
        """What its wall clock showed, None until it has told in this term."""
