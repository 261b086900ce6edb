"""Lab of the log alone and of brokers: scenarios, mutants and known seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_sim.brokers.known_seeds import KNOWN_SEEDS
from dledger_sim.brokers.library.scenario import LibraryScenario
from dledger_sim.brokers.mutants import MUTANTS
from dledger_sim.brokers.scenario import BrokerScenario
from dledger_sim.log import lab as log_lab
from dledger_sim.log.scenario import Scenario

_BROKERS: Final = (
    BrokerScenario("broker", swarm=True),
    BrokerScenario("plain"),
    BrokerScenario("repeats", repeats=True),
    BrokerScenario("forgets", repeats=True, forgets=True),
    BrokerScenario("races", races=True),
    BrokerScenario("halves", halves=True),
    BrokerScenario("delays", delays=True),
    BrokerScenario("locks", locks=True),
    BrokerScenario("retries", retries=True),
    BrokerScenario("mixed", swarm=True, halves=True, delays=True, locks=True, retries=True, pops=True),
    BrokerScenario("pops", pops=True),
    BrokerScenario("leases", leases=True),
    BrokerScenario("replies", replies=True),
    BrokerScenario("assignments", assignments=True),
    BrokerScenario("resets", resets=True),
    BrokerScenario("classes", classes=True),
    BrokerScenario("quotas", quotas=True),
    BrokerScenario("accounts", accounts=True),
    BrokerScenario("aliases", aliases=True),
    BrokerScenario("crowds", crowds=True),
    BrokerScenario(
        "broker-modes", modes=True, swarm=True, halves=True, delays=True, locks=True, retries=True, pops=True
    ),
    BrokerScenario("views", rotten_views=True, halves=True, delays=True, retries=True, pops=True),
    BrokerScenario("broker-rot", modes=True, rot=True, swarm=True, halves=True, delays=True, locks=True, pops=True),
)
SCENARIOS: Final[Mapping[str, Scenario]] = {
    **log_lab.SCENARIOS,
    **{one.name: one for one in _BROKERS},
    LibraryScenario.name: LibraryScenario(),
}

__all__ = ["KNOWN_SEEDS", "MUTANTS", "SCENARIOS"]
