"""History without a database: rates and leaderships of broker groups, as the console has seen them since its start.

The series are bounded and in memory. Where the cluster answers requests without an account, the console looks by itself
every few seconds. Where access control is on, it only sees what people look at, because it has no account.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from dledger_admin.health.groups import GroupView, group_views
from dledger_admin.health.reports import NodeAnswer, Survey
from dledger_admin.health.survey import REFUSED

SAMPLE_SECONDS: Final = 5.0
"""Interval between two samples of a series."""
MAX_SAMPLES: Final = 720
"""Maximum length of a series: an hour."""
MAX_GROUPS: Final = 256
"""Maximum number of broker groups with a history. Further groups have none."""
MAX_CHANGES: Final = 100
"""Maximum number of leaderships of a group that are remembered, the newest ones."""


class Leadership(msgspec.Struct, frozen=True):
    """A leader of a broker group, or None without one, as it was first seen at `at_ms`; `reason` says what was seen."""

    at_ms: int
    leader: str | None
    term: int | None
    reason: str


class Rates(msgspec.Struct, frozen=True):
    """Messages per second of a broker group: one value for each sample, the oldest first."""

    stored: list[float] = []
    delivered: list[float] = []
    seconds: float = SAMPLE_SECONDS


class _Group:
    """History of one broker group."""

    def __init__(self) -> None:
        self.stored: deque[float] = deque(maxlen=MAX_SAMPLES)
        self.delivered: deque[float] = deque(maxlen=MAX_SAMPLES)
        self.leaderships: deque[Leadership] = deque(maxlen=MAX_CHANGES)
        self.sampled_at = 0.0


class History:
    """History of all broker groups, made of surveys."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    ) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._groups: dict[str, _Group] = {}

    def note(self, survey: Survey) -> None:
        """Remember what a survey tells of each broker group.

        A survey in which nodes refuse to tell shows what its account may see, and not how the cluster is.
        """
        if any(isinstance(answer, str) and answer.startswith(REFUSED) for answer in survey.nodes.values()):
            return
        for view in group_views(survey):
            group = self._groups.get(view.name)
            if group is None:
                if len(self._groups) >= MAX_GROUPS:
                    continue
                group = self._groups[view.name] = _Group()
            self._note_leader(group, view, survey)
            if self._clock() - group.sampled_at >= SAMPLE_SECONDS:
                group.sampled_at = self._clock()
                answers = list(view.answers.values())
                group.stored.append(sum(answer.stored_per_s or 0.0 for answer in answers))
                group.delivered.append(sum(answer.delivered_per_s or 0.0 for answer in answers))

    def leaderships(self, broker_group: str) -> list[Leadership]:
        """Return the leaderships of a broker group, the newest first."""
        group = self._groups.get(broker_group)
        return [] if group is None else list(reversed(group.leaderships))

    def rates(self, broker_group: str) -> Rates:
        """Return the rates of a broker group."""
        group = self._groups.get(broker_group)
        return Rates() if group is None else Rates(list(group.stored), list(group.delivered))

    def total_rates(self) -> Rates:
        """Return the sums of all groups' rates, aligned at their ends."""
        groups = list(self._groups.values())
        length = max((len(group.stored) for group in groups), default=0)

        def total(series: list[deque[float]]) -> list[float]:
            return [
                sum(values[index - length] for values in series if len(values) >= length - index)
                for index in range(length)
            ]

        return Rates(total([group.stored for group in groups]), total([group.delivered for group in groups]))

    def _note_leader(self, group: _Group, view: GroupView, survey: Survey) -> None:
        leader = None if view.leader is None else view.leader.node_id
        term = None if view.leader is None else view.leader.term
        last = group.leaderships[-1] if group.leaderships else None
        if last is None or (last.leader, last.term) != (leader, term):
            reason = "when the console first looked" if last is None else _explain(last, view, survey)
            group.leaderships.append(Leadership(self._wall_ms(), leader, term, reason))


def _explain(last: Leadership, view: GroupView, survey: Survey) -> str:
    """Return what is seen of the leader before, which is why there is another one, or none."""
    if last.leader is None:
        return "an election has ended"
    answer = survey.nodes.get(view.addresses.get(last.leader, ""))
    report = view.report(last.leader)
    if view.leader is not None and view.leader.node_id == last.leader:
        return f"{last.leader} was elected again in a later term"
    if report is None:
        told = answer if isinstance(answer, str) else "is not registered any more"
        return f"{last.leader} {told}"
    if isinstance(answer, NodeAnswer) and answer.is_draining:
        return f"{last.leader} drains: it handed over and stops"
    return f"{last.leader} answers and does not lead any more: it handed over, or a majority did not hear from it"
