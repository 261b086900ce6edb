"""What can be simulated of the log alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger.sim.mutants import MUTANTS
from dledger.sim.registers import RegisterScenario
from dledger.sim.service import Scenario

SCENARIOS: Final[Mapping[str, Scenario]] = {"log": RegisterScenario()}

__all__ = ["MUTANTS", "SCENARIOS"]
