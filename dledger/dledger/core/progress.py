"""A leader's knowledge of one other member, updated with each message that is sent, answered or lost."""

from __future__ import annotations

from collections import deque

from dledger.consensus.peers import MAX_SILENCE_S, ClockReading, Mode
from dledger.core.messages import AppendReply, HeartbeatReply


class Progress:
    """One member's replication state in the present term of leadership."""

    __slots__ = (
        "_clock_question",
        "catching_up",
        "clock",
        "contact_at",
        "disk_used",
        "first_position",
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
        """Index up to which the member's log is durable and equal to the leader's."""
        self.verified_index = -1
        """Index up to which the member's log equals the leader's; it may not be durable yet."""
        self.next_index = next_index
        self.mode = Mode.PROBE
        self.in_flight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of every run sent and not answered."""
        self.in_flight_bytes = 0
        self.catching_up = False
        """True while a run of entries is being read from a file for the member."""
        self.probe_sent = False
        """True if the probe, or the whole snapshot, was sent."""
        self.probe_at = now
        self.contact_at = now
        """Time of the member's last answer in this term."""
        self.read_round = 0
        self.disk_used = 0
        self.healthy = True
        self.first_position = -1
        self.clock: ClockReading | None = None
        """Last reading of the member's clock; None before the first."""
        self._clock_question: tuple[int, float] | None = None
        """Number of the heartbeat round whose answer is to tell the member's clock, and the time when it was sent."""

    # ---------------------------------------------------------------- what was sent

    def note_sent(self, last_index: int, size: int) -> None:
        """Note that a run of entries up to `last_index` was sent."""
        self.in_flight.append((last_index, size))
        self.in_flight_bytes += size
        self.next_index = last_index + 1

    def note_caught_up(self, last_index: int, size: int, now: float) -> None:
        """Note that the run read from a file, up to `last_index`, was sent."""
        self.catching_up = False
        self.note_sent(last_index, size)
        self.probe_at = now

    def note_snapshot_sent(self, now: float) -> None:
        """Note that a whole snapshot was sent."""
        self.probe_sent = True
        self.probe_at = now

    # ---------------------------------------------------------------- answers

    def note_contact(self, reply: AppendReply | HeartbeatReply, now: float) -> None:
        """Note that the member has answered, and the condition that it reports."""
        self.contact_at = now
        self.disk_used = reply.disk_used
        self.healthy = reply.healthy
        if isinstance(reply, HeartbeatReply):
            self.first_position = reply.first_position

    def note_answered(self, verified_index: int) -> None:
        """Remove from `in_flight` the runs that arrived: those up to `verified_index`."""
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= verified_index:
            self.in_flight_bytes -= in_flight.popleft()[1]

    def note_accepted(self, verified_index: int, base_index: int, now: float) -> None:
        """Note that the follower accepted an append or a snapshot; `base_index` is that of the leader's log.

        An answer that covers less than the probe does not answer the probe:

        1. A sync of the follower ends after its first message from this leader, and before it accepts an append.
        2. The follower reports that nothing is verified.
        3. As an answer to the probe that would mean an empty log. The leader would send a snapshot that the follower
           does not need. If the follower has trimmed its log beyond that snapshot, this would never end.
        """
        is_probe_answered = verified_index >= self.next_index - 1
        self.verified_index = max(self.verified_index, verified_index)
        self.note_answered(verified_index)
        self.probe_at = now
        if (self.mode is Mode.PROBE and is_probe_answered) or (
            self.mode is Mode.SNAPSHOT and verified_index >= base_index
        ):
            self.restart(verified_index + 1, Mode.STREAM)
        self.next_index = max(self.next_index, verified_index + 1)

    def awaits_rejection(self, rejected_index: int) -> bool:
        """Return whether a rejection of entries behind `rejected_index` answers a message that is still unanswered."""
        if self.mode is Mode.PROBE:
            return rejected_index == self.next_index - 1
        return self.mode is Mode.STREAM and self.match_index < rejected_index < self.next_index

    def note_rejected(self, match_index: int, next_index: int) -> None:
        """Note a rejected append: the follower has entries up to `match_index`; `next_index` is tried next.

        A follower that acknowledges before it syncs may have restarted without entries that it acknowledged.
        """
        self.match_index = self.verified_index = min(self.match_index, match_index)
        next_index = max(next_index, self.match_index + 1)
        is_same_probe = self.mode is Mode.PROBE and next_index == self.next_index
        self.restart(next_index)
        # The same probe would be rejected again, so it is sent only after the next `resend_lost`.
        self.probe_sent = is_same_probe

    def note_heartbeat_sent(self, number: int, now: float) -> None:
        """Note that a heartbeat was sent. Its answer tells the clock, unless an earlier one still waits for that."""
        if self._clock_question is None or now - self._clock_question[1] > MAX_SILENCE_S:
            self._clock_question = number, now

    def note_heartbeat_answered(self, number: int, wall_ms: int, now: float) -> None:
        """Note that the member answered a heartbeat when its clock showed `wall_ms`.

        The reading counts from when the heartbeat was *sent*, not from when the answer is read:

        1. A follower answers, and the leader's process is stopped.
        2. Ten seconds later the leader continues, and reads the answer. Counted from then, the follower's clock would
           be ten seconds slow.
        """
        if self._clock_question is not None and number >= self._clock_question[0]:
            self.clock = ClockReading(wall_ms, self._clock_question[1], now)
            self._clock_question = None

    # ---------------------------------------------------------------- what may be lost

    def resend_lost(self, first_index: int, now: float, patience_s: float) -> None:
        """Let lost messages be sent again: a probe at each call, anything else after `patience_s` without an answer.

        A stream or a snapshot then begins anew with a probe. `first_index` is the first index of the leader's log.
        """
        is_overdue = now - self.probe_at > patience_s
        if self.mode is Mode.STREAM and self.in_flight:
            if is_overdue:
                self.restart(self.match_index + 1)
        elif self.mode is Mode.SNAPSHOT:
            # The follower had no space for it, or the log was trimmed beyond it meanwhile.
            if is_overdue and self.probe_sent:
                self.restart(max(self.match_index + 1, min(self.next_index, first_index)))
        elif self.mode is Mode.PROBE:
            self.probe_sent = False

    def note_reconnected(self) -> None:
        """Note that the link ended or is up again, so that messages in flight may be lost."""
        self.restart(self.match_index + 1 if self.match_index >= 0 else self.next_index)

    def restart(self, next_index: int, mode: Mode = Mode.PROBE) -> None:
        """Forget all messages in flight, heartbeats too, and continue from `next_index`."""
        self._clock_question = None
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.catching_up = False
        self.probe_sent = False
        self.next_index = next_index
        self.mode = mode
