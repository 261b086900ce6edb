"""A leader's knowledge of one other member."""

from __future__ import annotations

from collections import deque

from dledger.consensus.peers import MAX_SILENCE_S, ClockReading, Mode


class Progress:
    """One member's replication state in the present term of leadership."""

    __slots__ = (
        "_asked",
        "catching_up",
        "clock",
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
        self.healthy = True
        self.clock: ClockReading | None = None
        """As of the last beat that it answered."""
        self._asked: tuple[int, float] | None = None
        """A round of beats whose answer will tell its clock, and when that was sent."""

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

    def beat(self, number: int, now: float) -> None:
        """A beat of a round is on its way: its answer tells the clock, if that of no earlier one is still to come."""
        if self._asked is None or now - self._asked[1] > MAX_SILENCE_S:
            self._asked = number, now

    def beaten(self, number: int, wall_ms: int, now: float) -> None:
        """A beat was answered by a member whose clock showed `wall_ms`.

        A clock counts from when its member was *asked*, not from when the answer is read:

        1. A follower answers, and the leader stands still. 2. Ten seconds later it goes on, and reads what it was
        told. By the moment of reading, the follower's clock would stand where it stood ten seconds ago.
        """
        if self._asked is not None and number >= self._asked[0]:
            self.clock = ClockReading(wall_ms, self._asked[1], now)
            self._asked = None

    def restart(self, next_index: int, mode: Mode = Mode.PROBE) -> None:
        """Forget what is in flight, be it a beat, and go on from `next_index`."""
        self._asked = None
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.catching_up = False
        self.probe_sent = False
        self.next_index = next_index
        self.mode = mode
