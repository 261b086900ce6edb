"""Hunt for known bugs: each is switched on until its schedule or a seed catches it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from dledger_base.invariants import InvariantError
from dledger_sim.log.campaign import judge, open_lab
from dledger_sim.log.cases import Case
from dledger_sim.log.invariants import Violation

SECONDS = 20.0


class Catch(NamedTuple):
    """Outcome for one mutant. `seeds` is the number of seeds tried, or 0 if its schedule caught it."""

    mutant: str
    seeds: int
    how: str
    """Description of the catch; empty if nothing caught the mutant."""
    took_s: float

    @property
    def caught(self) -> bool:
        return bool(self.how)

    def __str__(self) -> str:
        where = "a schedule" if self.seeds == 0 else f"{self.seeds} seeds" if self.seeds > 1 else "1 seed"
        verdict = f"caught by {where}: {self.how}" if self.caught else f"NOT CAUGHT by {where}"
        return f"{self.mutant:36} {verdict} ({self.took_s:.1f} s)"


def hunt(names: Iterable[str], lab: str, seeds: int, jobs: int) -> Iterator[Catch]:
    """Yield each mutant's catch as soon as it is found."""
    one = partial(hunt_one, lab=lab, seeds=seeds)
    if jobs == 1:
        yield from map(one, names)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, name) for name in names]):
            yield future.result()


def hunt_one(name: str, lab: str, seeds: int) -> Catch:
    """Try the mutant's schedule, then the seed that is known to catch it, then seeds from 1 on.

    A mutant whose schedule no longer catches it is tried on seeds as well.
    """
    began = time.perf_counter()
    opened = open_lab(lab)
    mutant = opened.MUTANTS[name]
    if mutant.schedule is not None:
        with mutant.applied():
            try:
                mutant.schedule()
            except (AssertionError, InvariantError, Violation) as broken:
                how = f"{mutant.schedule.__name__}: {broken}"
                return Catch(name, 0, how, time.perf_counter() - began)
    known = opened.KNOWN_SEEDS.get(name, 1)
    cases = [Case(mutant.scenario, known, SECONDS, usual=True)]
    cases += [Case(mutant.scenario, seed, SECONDS) for seed in range(1, seeds)]
    for tried, case in enumerate(cases, 1):
        outcome, seed = judge(case, lab, name), case.seed
        if outcome.violation is not None:
            how = f"seed {seed} after {outcome.seconds:.1f} s: {outcome.violation.promise}"
            return Catch(name, tried, how, time.perf_counter() - began)
    return Catch(name, seeds, "", time.perf_counter() - began)
