"""Known bugs are caught: by seeds of the simulator, or by a schedule made for them (`make mutants` tries all seeds)."""

from collections.abc import Generator

import pytest

from dledger import loop_guard
from dledger.invariants import InvariantError
from dledger_sim.brokers.lab import MUTANTS
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case
from dledger_sim.log.invariants import Violation
from tests.sim.known_seeds import KNOWN_SEEDS

LAB = "dledger_sim.brokers.lab"
SECONDS = 20.0
SEEDS_TRIED = 60


@pytest.fixture(autouse=True)
def refusals_are_caught_bugs() -> Generator[None]:
    """A bug may have an event loop work on a disk: that convicts it, and is no fault of the test."""
    yield
    loop_guard.violations.clear()


WITHOUT_SCHEDULE = [name for name, mutant in MUTANTS.items() if mutant.schedule is None]
WITH_SCHEDULE = [name for name, mutant in MUTANTS.items() if mutant.schedule is not None]


def test_there_are_many() -> None:
    assert len(MUTANTS) >= 95


@pytest.mark.parametrize("name", WITH_SCHEDULE)
def test_schedules_catch(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.schedule is not None
    with mutant.applied(), pytest.raises((AssertionError, InvariantError, Violation)):
        mutant.schedule()


@pytest.mark.parametrize("name", WITHOUT_SCHEDULE)
def test_seeds_catch(name: str) -> None:
    scenario = MUTANTS[name].scenario
    tried = (KNOWN_SEEDS.get(name, 1), *range(1, SEEDS_TRIED))
    outcomes = (judge(Case(scenario, seed, SECONDS), LAB, name) for seed in tried)
    caught = next((outcome for outcome in outcomes if outcome.violation is not None), None)
    assert caught is not None, f"{name} got away with {SEEDS_TRIED} seeds"


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    before = [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches]
    with MUTANTS[name].applied():
        assert [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches] != before
    assert [vars(owner)[attribute] for owner, attribute, _ in MUTANTS[name].patches] == before
