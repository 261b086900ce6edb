"""Runner of many cases on several processes."""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import Protocol, cast

from dledger_sim.log.cases import Case
from dledger_sim.log.mutants import Mutant
from dledger_sim.log.run import CLIENT_PACKAGES, NODE_PACKAGES, Outcome, simulate
from dledger_sim.log.scenario import Scenario

GC_THRESHOLDS = (20_000, 20, 50)
"""Thresholds of the garbage collector. Simulated nodes make few cycles: the defaults would cost a tenth of the time."""


class Lab(Protocol):
    """Module that declares scenarios, known bugs, and for a known bug the number of a seed that catches it."""

    SCENARIOS: Mapping[str, Scenario]
    MUTANTS: Mapping[str, Mutant]
    KNOWN_SEEDS: Mapping[str, int]


def open_lab(name: str) -> Lab:
    """Return the lab with a module's name. The name lets worker processes open the same lab."""
    return cast(Lab, import_module(name))


def judge(case: Case, lab: str, mutant: str | None = None, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run a case, with a known bug switched on if `mutant` names it.

    Nodes log below ERROR only if there is a `trace`.
    """
    opened = open_lab(lab)
    with opened.MUTANTS[mutant].applied() if mutant else nullcontext():
        return run_case(case, opened.SCENARIOS[case.scenario], trace=trace)


def run_case(case: Case, scenario: Scenario, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run a case of a scenario that need not be in a lab. Nodes log below ERROR only if there is a `trace`."""
    gc.set_threshold(*GC_THRESHOLDS)
    began = time.process_time()
    with warnings.catch_warnings(), _logs(trace):
        # Tasks that die with their node before their first step cause this warning.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        outcome = simulate(case, scenario, trace=trace)
        gc.collect()
    outcome.cpu_s = time.process_time() - began
    return outcome


@contextmanager
def _logs(trace: Callable[[str], None] | None) -> Iterator[None]:
    """Drop log records below ERROR unless there is a trace. Restore the loggers' levels at the end."""
    loggers = [logging.getLogger(package) for package in (*NODE_PACKAGES, *CLIENT_PACKAGES)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR if trace is None else logging.NOTSET)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _begin(lab: str) -> None:
    """Load the modules that every case needs, and exempt them from garbage collection."""
    open_lab(lab)
    gc.collect()
    gc.freeze()


def judge_all(cases: Iterable[Case], lab: str, mutant: str | None = None, jobs: int = 1) -> Iterator[Outcome]:
    """Yield the outcome of every case, in order."""
    one = partial(judge, lab=lab, mutant=mutant)
    if jobs == 1:
        yield from map(one, cases)
        return
    with get_context("spawn").Pool(jobs, _begin, (lab,)) as pool:
        yield from pool.imap(one, cases)
