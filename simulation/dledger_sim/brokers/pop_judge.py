"""Judge of the messages that popping consumers were shown, and of their acknowledgements.

No message is shown twice to a group within its invisible time, and none after its acknowledgement was answered. There
are two exceptions. An ordered group reads a queue again from an unacknowledged message on, so it is shown acknowledged
messages behind that again. If a topic loses a queue for a while, deliveries there end: the group continues at its
unacknowledged messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from dledger_remoting.pop import CheckPoint
from dledger_remoting.topics import RETRY_PREFIX
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.pop_truth import PopTruth
from dledger_sim.log.invariants import require

CLOCK_SHARE: Final = 0.05
"""Maximum share by which clocks may run faster than the simulation. `CLOCK_S` is added for the reading of clocks."""
CLOCK_S: Final = 0.1


@dataclass(slots=True)
class _Shown:
    """Last showing of a message to a group."""

    pop_time_ms: int
    hidden_until: float
    """Simulated time in seconds before which no member of the group may be shown it again."""
    acked_at: float | None = None
    """Simulated time at which its acknowledgement was answered."""


class PopJudge:
    """Judge that knows what each group was shown, by the operations of messages."""

    def __init__(self, truth: PopTruth, counts: Counter[str]) -> None:
        self._truth = truth
        self._counts = counts
        self.clock_lead_s = 0.0
        """Lead of a busy leader's own clock, in seconds.

        The leader counts the time since others told it theirs by its own clock. A reading taken in a lead is behind.
        """
        self._shown: dict[tuple[str, int], _Shown] = {}
        self._places: dict[tuple[str, int], tuple[OffsetKey, int]] = {}
        """Place of each message that a group was shown, without its copies in retry topics."""
        self._stored_twice: set[tuple[str, int]] = set()
        """Messages that a repeated send has stored again. Each of the two is shown and acknowledged separately."""

    def shown(
        self, key: OffsetKey, point: CheckPoint, operation: int, sent_at: float, now: float, *, is_sure: bool
    ) -> None:
        """Check a message in the answer to a pop that was sent at `sent_at`.

        `is_sure` is false if clocks have jumped.
        """
        message = (key, point.pop_time_ms, point.queue_offset)
        require(message in self._truth.taken, "a pop shows the messages that it took", message=message)
        name = (key[0], operation)
        self._note_place(name, key, point.queue_offset)
        is_unknown = name in self._truth.begun_anew or name in self._stored_twice
        before = None if is_unknown else self._shown.get(name)
        if before is not None and before.pop_time_ms > point.pop_time_ms:
            self._counts["popped message shown late"] += 1
            return
        if before is not None:
            acked_at = before.acked_at
            is_read_again = point.is_ordered and self._truth.came_from_below(
                key, point.queue_offset, before.pop_time_ms, point.pop_time_ms
            )
            require(
                acked_at is None or sent_at < acked_at or is_read_again,
                "no message is shown after its acknowledgement",
                message=message,
                operation=operation,
            )
            require(
                not is_sure or now >= before.hidden_until or (is_read_again and acked_at is not None),
                "no message is shown twice within its invisible time",
                message=message,
                operation=operation,
                early_s=before.hidden_until - now,
            )
            self._counts["popped message shown again"] += 1
        until = sent_at + self._compute_minimum_s(point.invisible_ms)
        if before is None or before.acked_at is None or point.is_ordered:
            self._shown[name] = _Shown(point.pop_time_ms, until)
        self._counts["popped message shown"] += 1

    def counted(self, key: OffsetKey, point: CheckPoint, deliveries: int) -> None:
        """A message that was shown in order came with the number of its deliveries before."""
        popped = self._truth.times_popped(key, point.queue_offset, point.pop_time_ms)
        require(
            deliveries <= popped,
            "a pop in order counts no message as given too often",
            key=key,
            offset=point.queue_offset,
            told=deliveries,
            popped=popped,
        )
        self._counts["popped message counted as given before"] += deliveries > 0

    def _note_place(self, name: tuple[str, int], key: OffsetKey, offset: int) -> None:
        if not key[1].startswith(RETRY_PREFIX) and self._places.setdefault(name, (key, offset)) != (key, offset):
            self._stored_twice.add(name)

    def hiding(self, group: str, operation: int, sent_at: float, invisible_ms: int) -> None:
        """Note a request to hide a message anew. From now on the message may come as early as the request says."""
        shown = self._shown[group, operation]
        shown.hidden_until = min(shown.hidden_until, sent_at + self._compute_minimum_s(invisible_ms))

    def hidden(self, group: str, operation: int, sent_at: float, invisible_ms: int) -> None:
        """Note that a message is hidden anew, which ends its previous delivery."""
        shown = self._shown[group, operation]
        shown.hidden_until = max(shown.hidden_until, sent_at + self._compute_minimum_s(invisible_ms))

    def acknowledged(self, key: OffsetKey, point: CheckPoint, operation: int, now: float) -> None:
        """Check an acknowledgement that was answered."""
        message = (key, point.pop_time_ms, point.queue_offset)
        truth, name = self._truth, (key[0], operation)
        has_ended = truth.is_gone(key, point.queue_offset) or name in truth.begun_anew
        require(
            message in truth.acked or has_ended,
            "a message whose acknowledgement was answered is acknowledged",
            message=message,
        )
        shown = self._shown[name]
        shown.acked_at = now if shown.acked_at is None else shown.acked_at
        self._counts["popped message acknowledged by its answer"] += 1

    def _compute_minimum_s(self, invisible_ms: int) -> float:
        return max(invisible_ms / 1000 * (1 - CLOCK_SHARE) - CLOCK_S - self.clock_lead_s, 0.0)
