"""Schedules by hand on the real code; `schedules.py` tells their stories."""

from collections.abc import Callable

import pytest
from schedules import CORE_SCHEDULES, GROUP_SCHEDULES


@pytest.mark.parametrize("schedule", CORE_SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_pure_cores_survive(schedule: Callable[[], None]) -> None:
    schedule()


@pytest.mark.parametrize("schedule", GROUP_SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_replicas_survive(schedule: Callable[[], None]) -> None:
    schedule()
