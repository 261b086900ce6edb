"""`python -m dledger.sim`: many seeds, or one of them again.

Exit code 0: no promise was broken; 1: one was (with `--mutant`: none was, so the mutant got away).
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import click

from dledger.sim.campaign import judge, judge_all
from dledger.sim.mutants import MUTANTS
from dledger.sim.run import DEFAULT_SECONDS, Outcome


def _repeat(seed: int, seconds: float, mutant: str | None) -> str:
    command = f"python -m dledger.sim --seed {seed} --seconds {seconds:g} --trace"
    return f"{command} --mutant {mutant}" if mutant else command


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many seeds.")
@click.option("--first", default=1, show_default=True, help="The first of them.")
@click.option("--seconds", default=DEFAULT_SECONDS, show_default=True, help="Simulated seconds of trouble per seed.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--mutant", type=click.Choice(sorted(MUTANTS)), help="Switch a known bug on: it must be caught.")
@click.option("--seed", type=int, help="Run this seed only.")
@click.option("--trace", is_flag=True, help="Print what happens (with --seed).")
def main(seeds: int, first: int, seconds: float, jobs: int, mutant: str | None, seed: int | None, trace: bool) -> None:
    """Simulate whole groups on faulty disks, networks and clocks."""
    began = time.perf_counter()
    if seed is not None:
        all_outcomes = [judge(seed, seconds, mutant, trace=print if trace else None)]
    else:
        all_outcomes = []
        for outcome in judge_all(range(first, first + seeds), seconds, mutant, jobs):
            all_outcomes.append(outcome)
            if outcome.violation is not None:
                _report(outcome, seconds, mutant)
                if mutant:
                    break
    broken = [outcome for outcome in all_outcomes if outcome.violation is not None]
    if seed is not None and broken:
        _report(broken[0], seconds, mutant)
    _summarise(all_outcomes, time.perf_counter() - began)
    if mutant:
        print(f"mutant {mutant}: {'caught' if broken else 'NOT caught'} ({len(all_outcomes)} seeds)")
        sys.exit(0 if broken else 1)
    sys.exit(1 if broken else 0)


def _report(outcome: Outcome, seconds: float, mutant: str | None) -> None:
    violation = outcome.violation
    if violation is not None:
        print(f"seed {outcome.seed} breaks a promise after {outcome.seconds:.3f} s: {violation.promise}")
        print(f"  {violation.detail}")
        if outcome.place:
            print("  " + outcome.place.rstrip().replace("\n", "\n  "))
        print(f"  repeat it with: {_repeat(outcome.seed, seconds, mutant)}", flush=True)


def _summarise(outcomes: list[Outcome], took_s: float) -> None:
    faults: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.injected)
        happened.update(outcome.happened)
    simulated = sum(outcome.seconds for outcome in outcomes)
    print(
        f"{len(outcomes)} seeds, {simulated:.0f} simulated seconds in {took_s:.1f} s"
        f" ({simulated / took_s:.0f} times real time), {sum(outcome.events for outcome in outcomes)} events"
    )
    print(
        f"{sum(outcome.committed for outcome in outcomes)} entries committed,"
        f" writes {sum(outcome.ok for outcome in outcomes)} ok, {sum(outcome.failed for outcome in outcomes)} fail,"
        f" {sum(outcome.unknown for outcome in outcomes)} info,"
        f" {sum(outcome.reads for outcome in outcomes)} reads, {sum(outcome.terms for outcome in outcomes)} terms"
    )
    print("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
    print("reached: " + ", ".join(f"{what} {count}" for what, count in sorted(happened.items())))
    print(f"{sum(outcome.violation is not None for outcome in outcomes)} seeds broke a promise")


if __name__ == "__main__":
    main()
