"""Many cases, on several processes."""

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
from dledger_sim.log.run import NODE_PACKAGES, Outcome, simulate
from dledger_sim.log.scenario import Scenario

GC_THRESHOLDS = (20_000, 20, 50)
"""Simulated nodes make few cycles of objects: looking for them as often as usual takes a tenth of the time."""


class Lab(Protocol):
    """A module that says what can be simulated."""

    SCENARIOS: Mapping[str, Scenario]
    MUTANTS: Mapping[str, Mutant]


def open_lab(name: str) -> Lab:
    """The laboratory of a module's name, which other processes can open as well."""
    return cast(Lab, import_module(name))


def judge(case: Case, lab: str, mutant: str | None = None, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """One case, with a known bug switched on if `mutant` names one; what the nodes log shows in a trace only."""
    opened = open_lab(lab)
    with opened.MUTANTS[mutant].applied() if mutant else nullcontext():
        return run_case(case, opened.SCENARIOS[case.scenario], trace=trace)


def run_case(case: Case, scenario: Scenario, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """One case of a scenario that need not be in a laboratory; what the nodes log shows in a trace only."""
    gc.set_threshold(*GC_THRESHOLDS)
    began = time.process_time()
    with warnings.catch_warnings(), _logs(trace):
        # Tasks that die with their node before their first step.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        outcome = simulate(case, scenario, trace=trace)
        gc.collect()
    outcome.cpu_s = time.process_time() - began
    return outcome


@contextmanager
def _logs(trace: Callable[[str], None] | None) -> Iterator[None]:
    """Have nodes make no more log records than somebody looks at, and loggers as they were in the end."""
    loggers = [logging.getLogger(package) for package in NODE_PACKAGES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR if trace is None else logging.NOTSET)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _begin(lab: str) -> None:
    """Load what every case needs, and have no collection look at it again."""
    open_lab(lab)
    gc.collect()
    gc.freeze()


def judge_all(cases: Iterable[Case], lab: str, mutant: str | None = None, jobs: int = 1) -> Iterator[Outcome]:
    """Every case's outcome, in order."""
    one = partial(judge, lab=lab, mutant=mutant)
    if jobs == 1:
        yield from map(one, cases)
        return
    with get_context("spawn").Pool(jobs, _begin, (lab,)) as pool:
        yield from pool.imap(one, cases)
