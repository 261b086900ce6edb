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
    "group time is the time that the clocks of a majority of all voters have reached; an unknown clock has reached "
    "nothing",
    (group_clock, "reached_by_majority", _count_unknown_clocks),
    schedule=clocks.a_clock_that_nobody_hears,
)


def _believe(self: BelievedTime, reached_ms: int, _now: float) -> int:
    self._ms = max(self._ms, reached_ms)
    return self._ms


CATALOGUE.add(
    "jump-believed-at-once",
    "a clock that jumps is not believed before it has been steady for a minute",
    (BelievedTime, "look", _believe),
    schedule=clocks.two_clocks_jump_for_a_moment,
)

CATALOGUE.add(
    "time-not-carried-on",
    "a new leader goes on from the group time in the log",
    (GroupTimeTable, "carried", property(lambda _self: None)),
    schedule=clocks.two_clocks_jump_for_a_moment,
)

CATALOGUE.add(
    "jump-never-believed",
    "a clock that has jumped for good is believed after a minute",
    (clock, "JUMP_BELIEVED_S", float("inf")),
    schedule=clocks.all_clocks_jump_for_good,
)


def _count_from_the_reading(self: Progress, _number: int, wall_ms: int, now: float) -> None:
    self.clock = ClockReading(wall_ms, now, now)


CATALOGUE.add(
    "clock-counted-from-its-reading",
    "a clock's value counts from the time when its node was asked, even if the answer is read later",
    (Progress, "note_heartbeat_answered", _count_from_the_reading),
    schedule=clocks.leader_stands_still_with_answers_unread,
)
