"""Schedules by hand on the real code; `dledger.sim.schedules` tells the stories."""

from collections.abc import Callable

import pytest

from dledger.sim.schedules import SCHEDULES
from dledger_broker.sim.schedules import SCHEDULES as BROKER_SCHEDULES


@pytest.mark.parametrize("schedule", [*SCHEDULES, *BROKER_SCHEDULES], ids=lambda schedule: schedule.__name__)
def test_the_code_survives_what_broke_others(schedule: Callable[[], None]) -> None:
    schedule()
