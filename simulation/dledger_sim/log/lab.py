"""Lab of the log alone: scenarios, mutants and known seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_sim.log.known_seeds import KNOWN_SEEDS
from dledger_sim.log.modes import (
    draw_any_plan,
    draw_hang_plan,
    draw_mode_plan,
    draw_rot_plan,
    draw_sector_plan,
    draw_thread_plan,
)
from dledger_sim.log.mutants import MUTANTS
from dledger_sim.log.registers import RegisterScenario
from dledger_sim.log.scenario import Scenario

_LOGS: Final = (
    RegisterScenario("log", draw_any_plan),
    RegisterScenario("modes", draw_mode_plan, bursts=True),
    RegisterScenario("threads", draw_thread_plan, bursts=True),
    RegisterScenario("rot", draw_rot_plan, bursts=True),
    RegisterScenario("sectors", draw_sector_plan, bursts=True),
    RegisterScenario("hangs", draw_hang_plan, bursts=True),
)
SCENARIOS: Final[Mapping[str, Scenario]] = {one.name: one for one in _LOGS}

__all__ = ["KNOWN_SEEDS", "MUTANTS", "SCENARIOS"]
