"""Known bugs are caught. Each run tries a new sample of them, and `make mutants` tries all."""

import inspect
from collections.abc import Generator
from random import Random, SystemRandom

import pytest

from dledger_base import loop_guard
from dledger_sim.brokers.lab import MUTANTS
from dledger_sim.log.hunt import hunt_one

LAB = "dledger_sim.brokers.lab"
SEEDS_TRIED = 60
SAMPLE = 2
"""Number of mutants with a schedule, and number of those without one, that a run tries."""


@pytest.fixture(autouse=True)
def refusals_are_caught_bugs() -> Generator[None]:
    """Allow event loops to work on a disk, since a bug may do that and is then caught by it."""
    yield
    loop_guard.violations.clear()


def test_a_sample_of_the_known_bugs_is_caught() -> None:
    number = SystemRandom().randrange(1_000_000)
    draw = Random(number)
    sample = []
    for has_schedule in (True, False):
        names = sorted(name for name, mutant in MUTANTS.items() if (mutant.schedule is not None) == has_schedule)
        sample += draw.sample(names, SAMPLE)
    print(f"sample {number}: {' '.join(sample)}")
    catches = [hunt_one(name, LAB, SEEDS_TRIED) for name in sample]
    assert [catch.mutant for catch in catches if not catch.caught] == [], f"make mutants MUTANTS='{' '.join(sample)}'"


def test_a_mutant_takes_what_the_replaced_function_takes() -> None:
    """Otherwise it is caught for a call that no caller makes, and nothing is proved."""
    wrong = []
    for name, mutant in MUTANTS.items():
        for owner, attribute, replacement in mutant.patches:
            original = getattr(owner, attribute)
            if inspect.isroutine(original) and inspect.isroutine(replacement):
                taken, parameters = inspect.signature(replacement), inspect.signature(original).parameters.values()
                given = [None for one in parameters if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}]
                named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
                try:
                    taken.bind(*given, **named)
                except TypeError as error:
                    wrong.append(f"{name}: {attribute}: {error}")
    assert not wrong


def test_a_mutant_leaves_nothing_behind() -> None:
    for name, mutant in MUTANTS.items():
        before = [vars(owner)[attribute] for owner, attribute, _ in mutant.patches]
        with mutant.applied():
            assert [vars(owner)[attribute] for owner, attribute, _ in mutant.patches] != before, name
        assert [vars(owner)[attribute] for owner, attribute, _ in mutant.patches] == before, name
