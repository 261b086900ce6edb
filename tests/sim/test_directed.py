"""Schedules by hand on the real code; `schedules.py`, `group_schedules.py`, `disk_schedules.py` tell the stories."""

from collections.abc import Callable

import pytest
from disk_schedules import cache_after_a_failed_sync, mark_below_a_truncation, vote_after_power_loss
from group_schedules import GROUP_SCHEDULES
from schedules import CORE_SCHEDULES

STORE_SCHEDULES = (cache_after_a_failed_sync, mark_below_a_truncation, vote_after_power_loss)


@pytest.mark.parametrize("schedule", CORE_SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_pure_cores_survive(schedule: Callable[[], None]) -> None:
    schedule()


@pytest.mark.parametrize("schedule", GROUP_SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_replicas_survive(schedule: Callable[[], None]) -> None:
    schedule()


@pytest.mark.parametrize("schedule", STORE_SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_stores_survive(schedule: Callable[[], None]) -> None:
    schedule()
