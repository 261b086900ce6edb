"""Schedules by hand on the real code; `dledger_sim.log.schedules` tells the stories."""

from collections.abc import Callable

import pytest

from dledger_sim.brokers.schedules import SCHEDULES as BROKER_SCHEDULES
from dledger_sim.log.schedules import SCHEDULES


@pytest.mark.parametrize("schedule", [*SCHEDULES, *BROKER_SCHEDULES], ids=lambda schedule: schedule.__name__)
def test_the_code_survives_what_broke_others(schedule: Callable[[], None]) -> None:
    schedule()
