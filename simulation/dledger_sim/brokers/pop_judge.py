"""Judge of what consumers that pop were shown, and told.

No message is shown twice to a group within its invisible time, and none after its acknowledgement was answered. A
queue that its topic has no more for a while ends what is popped there: the group goes on at what it had not
acknowledged.
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
"""By so much clocks may run faster than the simulation, and a little for the reading of them."""
CLOCK_S: Final = 0.1


@dataclass(slots=True)
class _Shown:
    """A message that a group was shown last."""

    pop_time_ms: int
    hidden_until: float
    """Nobody else of the group may be shown it earlier, simulated seconds."""
    acked_at: float | None = None
    """When its acknowledgement was answered."""


class PopJudge:
    """Knows what each group was shown, by the operations of messages."""

    def __init__(self, truth: PopTruth, counts: Counter[str]) -> None:
        self._truth = truth
        self._counts = counts
        self._shown: dict[tuple[str, int], _Shown] = {}
        self._places: dict[tuple[str, int], tuple[OffsetKey, int]] = {}
        """Where each message stands that a group was shown, but for its copies in retry topics."""
        self._stored_twice: set[tuple[str, int]] = set()
        """Messages that a repeated send has stored again: each of the two is shown and acknowledged by itself."""

    def shown(
        self, key: OffsetKey, point: CheckPoint, operation: int, sent_at: float, now: float, *, is_sure: bool
    ) -> None:
        """A pop that was sent then is answered with a message; `is_sure` unless clocks have jumped."""
        message = (key, point.pop_time_ms, point.queue_offset)
        require(message in self._truth.taken, "a pop shows what it took", message=message)
        name = (key[0], operation)
        self._note_place(name, key, point.queue_offset)
        is_unknown = name in self._truth.begun_anew or name in self._stored_twice
        before = None if is_unknown else self._shown.get(name)
        if before is not None and before.pop_time_ms > point.pop_time_ms:
            self._counts["popped message shown late"] += 1
            return
        if before is not None:
            acked_at = before.acked_at
            require(
                acked_at is None or sent_at < acked_at,
                "nothing is shown after its acknowledgement",
                message=message,
                operation=operation,
            )
            require(
                not is_sure or now >= before.hidden_until,
                "nothing is shown twice within its invisible time",
                message=message,
                operation=operation,
                early_s=before.hidden_until - now,
            )
            self._counts["popped message shown again"] += 1
        until = sent_at + _at_least(point.invisible_ms)
        if before is None or before.acked_at is None:
            self._shown[name] = _Shown(point.pop_time_ms, until)
        self._counts["popped message shown"] += 1

    def _note_place(self, name: tuple[str, int], key: OffsetKey, offset: int) -> None:
        if not key[1].startswith(RETRY_PREFIX) and self._places.setdefault(name, (key, offset)) != (key, offset):
            self._stored_twice.add(name)

    def hiding(self, group: str, operation: int, sent_at: float, invisible_ms: int) -> None:
        """A consumer asks to have a message hidden anew: from now on it may come as early as that says."""
        shown = self._shown[group, operation]
        shown.hidden_until = min(shown.hidden_until, sent_at + _at_least(invisible_ms))

    def hidden(self, group: str, operation: int, sent_at: float, invisible_ms: int) -> None:
        """It is hidden, and its delivery before is over."""
        shown = self._shown[group, operation]
        shown.hidden_until = max(shown.hidden_until, sent_at + _at_least(invisible_ms))

    def acknowledged(self, key: OffsetKey, point: CheckPoint, operation: int, now: float) -> None:
        """A consumer was told that a message is acknowledged."""
        message = (key, point.pop_time_ms, point.queue_offset)
        truth, name = self._truth, (key[0], operation)
        has_ended = truth.is_gone(key, point.queue_offset) or name in truth.begun_anew
        require(message in truth.acked or has_ended, "what is answered as acknowledged is so", message=message)
        shown = self._shown[name]
        shown.acked_at = now if shown.acked_at is None else shown.acked_at
        self._counts["popped message acknowledged by its answer"] += 1


def _at_least(invisible_ms: int) -> float:
    return max(invisible_ms / 1000 * (1 - CLOCK_SHARE) - CLOCK_S, 0.0)
