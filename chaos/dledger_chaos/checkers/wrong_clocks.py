"""Times at which wrong clocks of nodes may have misled a group about what time it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from dledger_chaos.faults.clock import ClockFault

from .base import RunData
from .recovery import fault_spans

BELIEVED_NS: Final = 70 * 10**9
"""A group that has believed clocks which jumped goes on so for a minute after they are right."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Clocks of nodes were wrong for a time."""

    nodes: frozenset[str]
    is_ahead: bool
    begin_ns: int
    end_ns: int

    def overlaps(self, other: _Fault) -> bool:
        return self.begin_ns <= other.end_ns and other.begin_ns <= self.end_ns


class WrongClocks:
    """When time cannot be judged by the clocks of clients.

    Group time is what a majority's clocks have reached. One that is ahead while all others are right moves nothing. One
    that is behind does, if another node is not heard.
    """

    def __init__(self, run: RunData) -> None:
        faults = list(_clock_faults(run))
        self._misleading = [
            one
            for one in faults
            if not one.is_ahead or len(one.nodes) > 1 or any(one.overlaps(other) for other in faults if other != one)
        ]

    def may_mislead(self, begin_ns: int, end_ns: int) -> bool:
        """Whether a group may have had a wrong time between two moments."""
        return any(one.begin_ns <= end_ns and begin_ns <= one.end_ns + BELIEVED_NS for one in self._misleading)


def _clock_faults(run: RunData) -> list[_Fault]:
    spans = fault_spans(run.events)
    faults = []
    for event in run.events:
        if event.kind != "fault-begin" or event.fields.get("class") != "clock":
            continue
        values = event.fields["fault"]
        wrong = msgspec.convert(values, ClockFault, strict=False)
        _, begin_ns, end_ns = spans.get(msgspec.convert(event.fields["id"], int), ("", event.time_ns, run.info.end_ns))
        is_ahead = wrong.offset_s > 0 or wrong.drift_ppm > 0
        faults.append(_Fault(frozenset(wrong.nodes), is_ahead, begin_ns, end_ns))
    return faults
