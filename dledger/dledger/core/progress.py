"""A leader's knowledge of one other member, and what it becomes with each thing sent, answered or lost."""

from __future__ import annotations

from collections import deque

from dledger.consensus.peers import MAX_SILENCE_S, ClockReading, Mode
from dledger.core.messages import AppendReply, HeartbeatReply


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

    # ---------------------------------------------------------------- what went out

    def sent(self, last_index: int, size: int) -> None:
        """A run up to `last_index` is on its way."""
        self.in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.next_index = last_index + 1

    def caught_up(self, last_index: int, size: int, now: float) -> None:
        """The run that was read for it, up to `last_index`, is on its way."""
        self.catching_up = False
        self.sent(last_index, size)
        self.probe_at = now

    def snapshot_sent(self, now: float) -> None:
        """All of a snapshot is on its way."""
        self.probe_sent = True
        self.probe_at = now

    # ---------------------------------------------------------------- what it answered

    def heard(self, reply: AppendReply | HeartbeatReply, now: float) -> None:
        """It is there, and this is how it is."""
        self.contact_at = now
        self.disk_used = reply.disk_used
        self.healthy = reply.healthy

    def answered(self, verified_index: int) -> None:
        """Everything up to `verified_index` arrived."""
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= verified_index:
            self.in_flight_bytes -= in_flight.popleft()[1]

    def accepted(self, verified_index: int, base_index: int, now: float) -> None:
        """It took an append in, or a snapshot; `base_index` is that of our log.

        What covers less than a probe asked for is no answer to that:

        1. A follower's sync ends after it has heard of this leader, and before it has taken in any of its appends.
        2. It tells that nothing is verified. 3. Taken for the answer to the probe, that says that its log is empty: it
        would be sent a snapshot that it does not need, again and again if it has trimmed its log beyond that.
        """
        joined = verified_index >= self.next_index - 1
        self.verified_index = max(self.verified_index, verified_index)
        self.answered(verified_index)
        self.probe_at = now
        if (self.mode is Mode.PROBE and joined) or (self.mode is Mode.SNAPSHOT and verified_index >= base_index):
            self.restart(verified_index + 1, Mode.STREAM)
        self.next_index = max(self.next_index, verified_index + 1)

    def awaits_rejection(self, rejected_index: int) -> bool:
        """Whether a rejection of what follows an entry answers something that was asked since it last got on."""
        if self.mode is Mode.PROBE:
            return rejected_index == self.next_index - 1
        return self.mode is Mode.STREAM and self.match_index < rejected_index < self.next_index

    def rejected(self, match_index: int, next_index: int) -> None:
        """It rejected an append and vouches for the entries up to `match_index`; the next one to try is `next_index`.

        A follower that syncs later than it acknowledges may have come back without what it acknowledged.
        """
        self.match_index = self.verified_index = min(self.match_index, match_index)
        next_index = max(next_index, self.match_index + 1)
        asked = self.mode is Mode.PROBE and next_index == self.next_index
        self.restart(next_index)
        self.probe_sent = asked  # the same question has the same answer: it is asked again by the next nudge

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

    # ---------------------------------------------------------------- what may be lost

    def nudge(self, first_index: int, now: float, patience_s: float) -> None:
        """Send again what seems lost: a probe each time, a stream or a snapshot without an answer for longer than
        `patience_s` as a probe.  `first_index` is that of our log.
        """
        silent = now - self.probe_at > patience_s
        if self.mode is Mode.STREAM and self.in_flight:
            if silent:
                self.restart(self.match_index + 1)
        elif self.mode is Mode.SNAPSHOT:
            # The follower had no space for it, or the log was trimmed beyond it meanwhile.
            if silent and self.probe_sent:
                self.restart(max(self.match_index + 1, min(self.next_index, first_index)))
        elif self.mode is Mode.PROBE:
            self.probe_sent = False

    def reconnected(self) -> None:
        """Its link ended or is up again: nothing that is in flight need arrive."""
        self.restart(self.match_index + 1 if self.match_index >= 0 else self.next_index)

    def restart(self, next_index: int, mode: Mode = Mode.PROBE) -> None:
        """Forget what is in flight, be it a beat, and go on from `next_index`."""
        self._asked = None
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.catching_up = False
        self.probe_sent = False
        self.next_index = next_index
        self.mode = mode
