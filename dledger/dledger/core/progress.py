"""A leader's knowledge of one other member."""

from __future__ import annotations

from collections import deque
from enum import IntEnum


class Mode(IntEnum):
    """How entries are sent to a member."""

    PROBE = 0
    """Where its log ends is not known; one empty append at a time."""
    STREAM = 1
    """Pipelined, from memory or from the file."""
    SNAPSHOT = 2
    """It needs entries that are gone; a snapshot is on its way."""


class Progress:
    """One member's replication state in the present term of leadership."""

    __slots__ = (
        "catching_up",
        "contact_at",
        "disk_used",
        "healthy",
        "in_flight",
        "in_flight_bytes",
        "match_index",
        "mode",
        "next_index",
        "probe_at",
        "probe_sent",
        "read_round",
        "verified_index",
        "wall_ms",
    )

    def __init__(self, next_index: int, now: float) -> None:
        self.match_index = -1
        """Durable there and equal to ours."""
        self.verified_index = -1
        """Equal to ours, perhaps not durable yet."""
        self.next_index = next_index
        self.mode = Mode.PROBE
        self.in_flight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of every run sent and not answered."""
        self.in_flight_bytes = 0
        self.catching_up = False
        """A run is being read from the file for it."""
        self.probe_sent = False
        """The probe is out, or all of the snapshot."""
        self.probe_at = now
        self.contact_at = now
        """When it last answered in this term."""
        self.read_round = 0
        self.disk_used = 0
        self.wall_ms = 0
        self.healthy = True

    def sent(self, last_index: int, size: int) -> None:
        """A run up to `last_index` is on its way."""
        self.in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.next_index = last_index + 1

    def answered(self, verified_index: int) -> None:
        """Everything up to `verified_index` arrived."""
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= verified_index:
            self.in_flight_bytes -= in_flight.popleft()[1]

    def restart(self, next_index: int, mode: Mode = Mode.PROBE) -> None:
        """Forget what is in flight and go on from `next_index`."""
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.catching_up = False
        self.probe_sent = False
        self.next_index = next_index
        self.mode = mode
