"""Command line of a simulator, for `python -m dledger_sim.log` and for simulators of more than the log.

The exit code is 0 if no promise was broken, and 1 if one was. With `--mutant` it is the other way round: 1 means that
nothing caught the mutant.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import click

from dledger.types import ENGINES, NATIVE_ENGINE
from dledger_sim.log.campaign import Lab, judge, judge_all, open_lab
from dledger_sim.log.cases import DEFAULT_SECONDS, Case, decode_case, encode_case
from dledger_sim.log.figures import figures, write_figures
from dledger_sim.log.hunt import hunt
from dledger_sim.log.run import Outcome
from dledger_sim.log.shrink import shrink
from dledger_sim.log.totals import Totals, load_totals, save_totals

SAVE_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class _Simulator:
    """Simulator behind `python -m module`: a module name and the lab of what it simulates."""

    module: str
    lab: str
    opened: Lab

    @property
    def scenario(self) -> click.Choice[str]:
        return click.Choice(sorted(self.opened.SCENARIOS))

    @property
    def mutant(self) -> click.Choice[str]:
        return click.Choice(sorted(self.opened.MUTANTS))

    def in_turn(self, chosen: tuple[str, ...], mutant: str | None) -> tuple[str, ...]:
        """Return the scenarios that seeds go through: the chosen ones, else the mutant's own, else all."""
        return chosen or ((self.opened.MUTANTS[mutant].scenario,) if mutant else tuple(sorted(self.opened.SCENARIOS)))


@dataclass(frozen=True, slots=True)
class _Series:
    """Seeds to run one after another.

    `state` is the file with the totals of earlier seeds. `keep` is the directory for cases that break a promise.
    """

    simulator: _Simulator
    cases: list[Case]
    jobs: int
    mutant: str | None
    minutes: float | None
    state: Path | None
    keep: Path | None

    def run(self, totals: Totals) -> Totals:
        """Run the seeds, add them to `totals`, and return the totals of these seeds alone.

        Stop early once the mutant is caught or the time is up.
        """
        run = Totals()
        began = saved_at = time.monotonic()
        for outcome in judge_all(self.cases, self.simulator.lab, self.mutant, self.jobs):
            run.add(outcome)
            totals.add(outcome)
            _report(self.simulator.module, outcome, self.mutant)
            if outcome.violation is not None:
                _keep(self.keep, outcome)
            now = time.monotonic()
            if self.state is not None and now - saved_at > SAVE_PERIOD_S:
                saved_at = now
                save_totals(self.state, totals)
            if (self.mutant and outcome.violation is not None) or (self.minutes and now - began > self.minutes * 60):
                break
        if self.state is not None:
            save_totals(self.state, totals)
        _summarise(run, time.monotonic() - began)
        return run


def command(module: str, lab: str) -> click.Group:
    """Return the command of `python -m module`, which simulates what the module `lab` declares."""
    simulator = _Simulator(module, lab, open_lab(lab))
    main = _seeds(simulator)
    for make in (_case, _shrink, _figures, _mutants):
        main.add_command(make(simulator))
    return main


def _seeds(simulator: _Simulator) -> click.Group:
    @click.group(invoke_without_command=True)
    @click.option("--seeds", default=100, show_default=True, help="Number of seeds.")
    @click.option("--first", default=1, show_default=True, help="First seed.")
    @click.option(
        "--seconds", default=DEFAULT_SECONDS, show_default=True, help="Simulated seconds of trouble per seed."
    )
    @click.option("--jobs", default=2, show_default=True, help="Number of processes.")
    @click.option(
        "--scenario",
        "chosen",
        multiple=True,
        type=simulator.scenario,
        help="Run only this scenario. Default: all in turn.",
    )
    @click.option(
        "--engine", type=click.Choice(ENGINES), default=NATIVE_ENGINE, show_default=True, help="Engine of all nodes."
    )
    @click.option("--mutant", type=simulator.mutant, help="Switch on this known bug, which must be caught.")
    @click.option("--seed", type=int, help="Run this seed only.")
    @click.option("--trace", is_flag=True, help="Print what happens (with --seed).")
    @click.option(
        "--state",
        type=click.Path(path_type=Path),
        help="File with totals: go on after its last seed, and add to the totals.",
    )
    @click.option("--minutes", type=float, help="Begin no seed after this many minutes.")
    @click.option(
        "--keep", type=click.Path(path_type=Path), help="Directory for files of the cases that break a promise."
    )
    @click.pass_context
    def main(
        context: click.Context,
        seeds: int,
        first: int,
        seconds: float,
        jobs: int,
        chosen: tuple[str, ...],
        engine: str,
        mutant: str | None,
        seed: int | None,
        trace: bool,
        state: Path | None,
        minutes: float | None,
        keep: Path | None,
    ) -> None:
        """Simulate whole groups on faulty disks, networks and clocks."""
        if context.invoked_subcommand is not None:
            return
        in_turn = simulator.in_turn(chosen, mutant)
        if seed is not None:
            outcome = judge(
                Case(in_turn[0], seed, seconds, engine=engine), simulator.lab, mutant, trace=print if trace else None
            )
            _report(simulator.module, outcome, mutant)
            sys.exit(outcome.violation is not None)
        totals = load_totals(state)
        first = max(first, totals.next_seed)
        numbers = range(first, first + seeds)
        cases = [Case(in_turn[number % len(in_turn)], number, seconds, engine=engine) for number in numbers]
        missed = sorted(set(in_turn) - {case.scenario for case in cases})
        if missed and not mutant:
            print(f"too few seeds for all scenarios; without one: {', '.join(missed)}")
        print(f"seeds {first} to {first + seeds - 1}", flush=True)
        run = _Series(simulator, cases, jobs, mutant, minutes, state, keep).run(totals)
        if state is not None:
            print(f"in all: {totals.seeds} seeds, {totals.simulated_s / 3600:.1f} simulated hours")
        if mutant:
            print(f"mutant {mutant}: {'caught' if run.broken else 'NOT caught'} ({run.seeds} seeds)")
        sys.exit((run.broken == 0) if mutant else (run.broken > 0))

    return main


def _case(simulator: _Simulator) -> click.Command:
    @click.command("case")
    @click.argument("file", type=click.Path(exists=True, path_type=Path))
    @click.option("--trace", is_flag=True, help="Print what happens.")
    def repeat(file: Path, trace: bool) -> None:
        """Repeat a case from a file."""
        outcome = judge(decode_case(file.read_bytes()), simulator.lab, trace=print if trace else None)
        _report(simulator.module, outcome, None)
        sys.exit(outcome.violation is not None)

    return repeat


def _shrink(simulator: _Simulator) -> click.Command:
    @click.command("shrink")
    @click.option("--seed", type=int, required=True)
    @click.option("--seconds", default=DEFAULT_SECONDS, show_default=True)
    @click.option("--scenario", type=simulator.scenario, required=True)
    @click.option("--mutant", type=simulator.mutant, help="Switch on this known bug.")
    @click.option(
        "--minutes", default=5.0, show_default=True, help="Time limit of the search for a shorter case, in minutes."
    )
    @click.argument("output", type=click.Path(path_type=Path))
    def shorten(seed: int, seconds: float, scenario: str, mutant: str | None, minutes: float, output: Path) -> None:
        """Find a short case that breaks the same promise as a seed, and write it to OUTPUT."""
        found = shrink(
            Case(scenario, seed, seconds),
            lambda case: judge(case, simulator.lab, mutant),
            deadline=time.monotonic() + minutes * 60,
            tell=print,
        )
        if found is None:
            print(f"seed {seed} breaks no promise")
            sys.exit(1)
        output.write_bytes(encode_case(found))
        print(f"repeat it with: python -m {simulator.module} case {output} --trace")

    return shorten


def _figures(_: _Simulator) -> click.Command:
    @click.command("figures")
    @click.argument("state", type=click.Path(exists=True, path_type=Path))
    @click.option("--page", type=click.Path(exists=True, path_type=Path), help="Put the table into this page.")
    @click.option("--commit", help="Commit that was run, for the table.")
    def show_figures(state: Path, page: Path | None, commit: str | None) -> None:
        """Print the totals in a file as a table."""
        totals = load_totals(state)
        if page is None:
            print(figures(totals, commit))
        else:
            write_figures(page, totals, commit)

    return show_figures


def _mutants(simulator: _Simulator) -> click.Command:
    @click.command("mutants")
    @click.option(
        "--list", "only_list", is_flag=True, help="Only list the known bugs and the promises that they break."
    )
    @click.option("--seeds", default=60, show_default=True, help="Maximum number of seeds for a known bug.")
    @click.option("--jobs", default=2, show_default=True, help="Number of processes.")
    @click.argument("names", nargs=-1, type=simulator.mutant)
    def all_mutants(only_list: bool, seeds: int, jobs: int, names: tuple[str, ...]) -> None:
        """Switch on the known bugs one by one, and show what catches each."""
        if only_list:
            for mutant in simulator.opened.MUTANTS.values():
                print(f"{mutant.name:36} {mutant.scenario:8} {mutant.breaks}")
            return
        uncaught = 0
        for catch in hunt(names or tuple(simulator.opened.MUTANTS), simulator.lab, seeds, jobs):
            uncaught += not catch.caught
            print(catch, flush=True)
        print(f"{uncaught} mutants were not caught")
        sys.exit(uncaught > 0)

    return all_mutants


def _repeat(module: str, case: Case, mutant: str | None) -> str:
    line = f"python -m {module} --scenario {case.scenario} --seed {case.seed} --seconds {case.seconds:g}"
    line += f" --engine {case.engine} --trace"
    return f"{line} --mutant {mutant}" if mutant else line


def _report(module: str, outcome: Outcome, mutant: str | None) -> None:
    violation = outcome.violation
    if violation is not None:
        case = outcome.case
        print(f"{case.scenario} seed {case.seed} breaks a promise after {outcome.seconds:.3f} s: {violation.promise}")
        print(f"  {violation.detail}")
        if outcome.place:
            print("  " + outcome.place.rstrip().replace("\n", "\n  "))
        if case.strikes is None:
            print(f"  repeat it with: {_repeat(module, case, mutant)}", flush=True)


def _keep(directory: Path | None, outcome: Outcome) -> None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{outcome.case.scenario}-{outcome.case.seed}.json"
        path.write_bytes(encode_case(outcome.case))


def _summarise(run: Totals, took_s: float) -> None:
    print(
        f"{run.seeds} seeds, {run.simulated_s:.0f} simulated seconds in {took_s:.1f} s,"
        f" {run.simulated_s / max(run.cpu_s, 1e-9):.0f} times real time per core; {run.events} events,"
        f" {run.committed} entries committed, {run.terms} terms"
    )
    for title, counted in (("clients", run.counts), ("faults", run.faults), ("reached", run.happened)):
        print(f"{title}: " + ", ".join(f"{what} {count}" for what, count in sorted(Counter(counted).items())))
    print(f"{run.broken} seeds broke a promise")
