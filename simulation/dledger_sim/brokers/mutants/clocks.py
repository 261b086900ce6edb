"""Bugs of group time: which clocks count, and which are believed."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.consensus.peers import ClockReading
from dledger.core.progress import Progress
from dledger_broker.kernel import clock, group_clock
from dledger_broker.kernel.clock import BelievedTime
from dledger_broker.kernel.group_time import GroupTimeTable
from dledger_sim.brokers.schedules import clocks
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")


def _count_unknown_clocks(of_voters: Sequence[int | None]) -> int | None:
    known = [at_ms for at_ms in of_voters if at_ms is not None]
    return clock.reached_by_majority([*known, *[max(known)] * (len(of_voters) - len(known))]) if known else None


CATALOGUE.add(
    "unknown-clocks-counted",
    "group time is what the clocks of a majority of all voters have reached, and who is not heard has reached nothing",
    (group_clock, "reached_by_majority", _count_unknown_clocks),
    schedule=clocks.a_clock_that_nobody_hears,
)


def _believe(self: BelievedTime, reached_ms: int, _now: float) -> int:
    self._ms = max(self._ms, reached_ms)
    return self._ms


CATALOGUE.add(
    "jump-believed-at-once",
    "clocks that jump are not believed before they have stood for a minute",
    (BelievedTime, "look", _believe),
    schedule=clocks.two_clocks_jump_for_a_moment,
)

CATALOGUE.add(
    "time-not-carried-on",
    "a leader that begins goes on from the group time that the log tells",
    (GroupTimeTable, "carried", property(lambda _self: None)),
    schedule=clocks.two_clocks_jump_for_a_moment,
)

CATALOGUE.add(
    "jump-never-believed",
    "clocks that have jumped for good are believed after a minute",
    (clock, "STANDS_S", float("inf")),
    schedule=clocks.all_clocks_jump_for_good,
)


def _count_from_the_reading(self: Progress, _number: int, wall_ms: int, now: float) -> None:
    self.clock = ClockReading(wall_ms, now, now)


CATALOGUE.add(
    "clock-counted-from-its-reading",
    "what a clock showed counts from when its node was asked, however late the answer is read",
    (Progress, "beaten", _count_from_the_reading),
    schedule=clocks.leader_stands_still_with_answers_unread,
)
