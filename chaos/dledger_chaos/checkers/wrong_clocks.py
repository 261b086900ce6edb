"""Times at which the wrong clocks of nodes may have led to a wrong group time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from dledger_chaos.faults.clock import KINDS, ClockFault

from .base import RunData
from .recovery import fault_spans, struck_faults

CLOCK_KINDS: Final = frozenset(kind.name for kind in KINDS)
BELIEVED_NS: Final = 70 * 10**9
"""Maximum time in ns for which group time may stay wrong after all clocks are right: a minute and a margin."""


@dataclass(frozen=True, slots=True)
class _WrongClock:
    """A time during which the clocks of some nodes were wrong."""

    nodes: frozenset[str]
    is_ahead: bool
    begin_ns: int
    end_ns: int

    def overlaps(self, other: _WrongClock) -> bool:
        return self.begin_ns <= other.end_ns and other.begin_ns <= self.end_ns


class WrongClocks:
    """The times at which group time may be wrong, so that clients cannot judge delays.

    Group time is the time that a majority's clocks have reached. A single clock that is ahead, while all others are
    right, has no effect. A clock that is behind has an effect if another node is unreachable.
    """

    def __init__(self, run: RunData) -> None:
        clocks = list(_collect_wrong_clocks(run))
        self._misleading_clocks = [
            clock
            for clock in clocks
            if not clock.is_ahead
            or len(clock.nodes) > 1
            or any(clock.overlaps(other) for other in clocks if other != clock)
        ]

    def may_mislead(self, begin_ns: int, end_ns: int) -> bool:
        """Return True if group time may have been wrong between two times."""
        return any(
            clock.begin_ns <= end_ns and begin_ns <= clock.end_ns + BELIEVED_NS for clock in self._misleading_clocks
        )


def _collect_wrong_clocks(run: RunData) -> list[_WrongClock]:
    spans = fault_spans(run.events)
    clocks = []
    for event, kind, values in struck_faults(run.events):
        if kind not in CLOCK_KINDS:
            continue
        wrong = msgspec.convert(values, ClockFault, strict=False)
        _, begin_ns, end_ns = spans.get(msgspec.convert(event.fields["id"], int), ("", event.time_ns, run.info.end_ns))
        is_ahead = wrong.offset_s > 0 or wrong.drift_ppm > 0
        clocks.append(_WrongClock(frozenset(wrong.nodes), is_ahead, begin_ns, end_ns))
    return clocks
