"""A simulated group for tests that drive it by hand."""

from random import Random

import pytest

from dledger_sim.log.group import GroupSettings, SimGroup, SimNode
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.scheduler import Scheduler


@pytest.fixture
def group() -> SimGroup:
    group = SimGroup(Scheduler(), Random(1), GroupSettings(clock_drift=0.0), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    assert group.healthy()
    return group


@pytest.fixture
def leader(group: SimGroup) -> SimNode:
    assert group.leader is not None
    return group.leader
