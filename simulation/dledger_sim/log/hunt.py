"""Every known bug, until something catches it: the schedule written for it, or seeds one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from dledger.invariants import InvariantError
from dledger_sim.log.campaign import judge, open_lab
from dledger_sim.log.cases import Case
from dledger_sim.log.invariants import Violation

SECONDS = 20.0
SEEDS_BEFORE_SCHEDULE = 5
"""Seeds that a mutant with a schedule of its own gets first."""


class Catch(NamedTuple):
    """What became of a mutant; `seeds` is how many it took, 0 if a schedule caught it first."""

    mutant: str
    seeds: int
    how: str
    """Empty if nothing caught it."""
    took_s: float

    @property
    def caught(self) -> bool:
        return bool(self.how)

    def __str__(self) -> str:
        where = "a schedule" if self.seeds == 0 else f"{self.seeds} seeds" if self.seeds > 1 else "1 seed"
        verdict = f"caught by {where}: {self.how}" if self.caught else f"NOT CAUGHT by {where}"
        return f"{self.mutant:36} {verdict} ({self.took_s:.1f} s)"


def hunt(names: Iterable[str], lab: str, seeds: int, jobs: int) -> Iterator[Catch]:
    """Each mutant's catch, as they come in."""
    one = partial(hunt_one, lab=lab, seeds=seeds)
    if jobs == 1:
        yield from map(one, names)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, name) for name in names]):
            yield future.result()


def hunt_one(name: str, lab: str, seeds: int) -> Catch:
    """Seeds first, then its schedule."""
    began = time.perf_counter()
    mutant = open_lab(lab).MUTANTS[name]
    tried = seeds if mutant.schedule is None else min(seeds, SEEDS_BEFORE_SCHEDULE)
    for seed in range(1, tried + 1):
        outcome = judge(Case(mutant.scenario, seed, SECONDS), lab, name)
        if outcome.violation is not None:
            how = f"seed {seed} after {outcome.seconds:.1f} s: {outcome.violation.promise}"
            return Catch(name, seed, how, time.perf_counter() - began)
    if mutant.schedule is not None:
        with mutant.applied():
            try:
                mutant.schedule()
            except (AssertionError, InvariantError, Violation) as broken:
                how = f"{mutant.schedule.__name__}: {broken}"
                return Catch(name, 0, how, time.perf_counter() - began)
    return Catch(name, tried, "", time.perf_counter() - began)
