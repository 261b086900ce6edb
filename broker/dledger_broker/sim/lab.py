"""What can be simulated: the log alone, and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger.sim import lab as log_lab
from dledger.sim.mutants import MUTANTS as LOG_MUTANTS
from dledger.sim.mutants.catalogue import Mutant
from dledger.sim.service import Scenario
from dledger_broker.sim.trial import BrokerScenario

SCENARIOS: Final[Mapping[str, Scenario]] = {**log_lab.SCENARIOS, "broker": BrokerScenario()}
MUTANTS: Final[Mapping[str, Mutant]] = {**LOG_MUTANTS}
