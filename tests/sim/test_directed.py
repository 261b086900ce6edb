"""Schedules by hand run on the real code. `dledger_sim.log.schedules` tells their stories."""

from collections.abc import Callable

import pytest

from dledger_sim.brokers.lab import MUTANTS as BROKER_MUTANTS
from dledger_sim.brokers.schedules import SCHEDULES as BROKER_SCHEDULES
from dledger_sim.log.mutants import MUTANTS
from dledger_sim.log.schedules import SCHEDULES

LONG = {
    "a_log_without_room_for_what_waits",
    "all_clocks_jump_for_good",
    "members_that_come_and_go",
    "power_loss_on_a_slow_disk",
}
"""Schedules that take many seconds."""


def marks(schedule: Callable[[], None]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if schedule.__name__ in LONG else []


@pytest.mark.parametrize(
    "schedule", [pytest.param(one, id=one.__name__, marks=marks(one)) for one in (*SCHEDULES, *BROKER_SCHEDULES)]
)
def test_the_engine_survives_schedules_that_broke_other_implementations(schedule: Callable[[], None]) -> None:
    schedule()


def test_each_schedule_that_catches_a_known_bug_runs_without_the_bug_as_well() -> None:
    """A schedule that failed in any case would seem to catch the bug."""
    catching = {bug.schedule for bug in (*MUTANTS.values(), *BROKER_MUTANTS.values())} - {None}
    assert catching <= {*SCHEDULES, *BROKER_SCHEDULES}
