"""Whole groups, from seeds: those that once broke a promise, and a few of all."""

from pathlib import Path

import pytest

from dledger.sim.campaign import judge
from dledger.sim.nemesis import KINDS
from dledger.sim.run import Outcome, simulate

FRESH = range(500, 540)
SECONDS = 10.0


def _remembered() -> list[tuple[int, float]]:
    lines = (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8").splitlines()
    return [(int(seed), float(seconds)) for seed, seconds in (line.split() for line in lines if line[0] != "#")]


def _check(outcome: Outcome) -> None:
    assert outcome.violation is None, f"seed {outcome.seed}: {outcome.violation}\n{outcome.place}"


@pytest.mark.parametrize(("seed", "seconds"), _remembered())
def test_seeds_that_once_failed_pass(seed: int, seconds: float) -> None:
    _check(judge(seed, seconds))


def test_no_promise_is_broken_under_any_fault() -> None:
    outcomes = [judge(seed, SECONDS) for seed in FRESH]
    for outcome in outcomes:
        _check(outcome)
    assert {kind for outcome in outcomes for kind in outcome.injected} == set(KINDS)
    assert sum(outcome.ok for outcome in outcomes) > 100 * len(outcomes)
    assert sum(outcome.reads for outcome in outcomes) > 10 * len(outcomes)
    for happening in ("snapshot sent", "log replaced", "entries truncated", "log trimmed", "conflict"):
        assert sum(outcome.happened[happening] for outcome in outcomes), happening


def test_a_seed_repeats_exactly() -> None:
    first, lines = [], []
    once = simulate(7, 5.0, trace=first.append)
    again = simulate(7, 5.0, trace=lines.append)
    assert first == lines
    assert (once.events, once.committed, once.ok) == (again.events, again.committed, again.ok)
