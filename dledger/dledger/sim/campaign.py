"""Many seeds, on several processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context

from dledger.sim.mutants import MUTANTS
from dledger.sim.run import Outcome, simulate


def judge(
    seed: int, seconds: float, mutant: str | None = None, *, trace: Callable[[str], None] | None = None
) -> Outcome:
    """One seed, with a known bug switched on if `mutant` names one; what the replicas log shows in a trace only."""
    logging.getLogger("dledger").setLevel(logging.CRITICAL if trace is None else logging.NOTSET)
    with MUTANTS[mutant].applied() if mutant else nullcontext():
        return simulate(seed, seconds, trace=trace)


def judge_all(seeds: Iterable[int], seconds: float, mutant: str | None = None, jobs: int = 1) -> Iterator[Outcome]:
    """Every seed's outcome, as they come in."""
    one = partial(judge, seconds=seconds, mutant=mutant)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds)
