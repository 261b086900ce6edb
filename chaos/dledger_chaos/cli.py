"""`dledger chaos`: inject faults into a real cluster, list faults, workloads and known bugs, judge a run again.

The help needs no large package: a command imports its packages when it runs.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
import msgspec
from click.core import ParameterSource

from dledger.types import ENGINES
from dledger_admin.help import HelpGroup
from dledger_admin.output import emit, output_option

from .errors import ChaosError
from .pace import MAX_OVERLAP, PAUSE_SPREAD_S, SHORTEST_PAUSE_S, Pace

if TYPE_CHECKING:
    from .checkers.base import Verdict
    from .mutants.trials import MutantTrial
    from .run import RunResult

Command = TypeVar("Command", bound=Callable[..., object])

EXIT_CODES: Final = {"valid": 0, "invalid": 1, "unknown": 2}
DEFAULT_MINUTES: Final = 3.0
CAMPAIGN_MINUTES: Final = 5.0
DEFAULT_OUT: Final = Path("chaos-runs")

_TARGETS: Final = ("local", "two-groups", "proxies", "register", "pysyncobj", "rocketmq")

_OPTIONS_OF_SWARM: Final = ("faults", "target", "overlap", "pause", "mutant")


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A kind of fault."""

    name: str
    family: str
    summary: str


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """A workload, the kind of target that it needs, and the reason why it cannot run here, if there is one."""

    name: str
    target: str
    summary: str
    obstacle: str | None


@dataclass(frozen=True, slots=True)
class MutantRow:
    """A known bug, the promise that it breaks, and its trial in real processes, if there is any."""

    name: str
    breaks: str
    trial: MutantTrial | None


@click.group(cls=HelpGroup)
def chaos() -> None:
    """Faults on real processes: a cluster behind proxies, workloads, histories, checkers, a report."""


def minutes_option(default: float, help_text: str) -> Callable[[Command], Command]:
    """Add `--minutes`, as parameter `minutes`."""
    minutes = click.FloatRange(min=0.1)
    return click.option("--minutes", type=minutes, default=default, show_default=True, help=help_text)


def out_option(help_text: str) -> Callable[[Command], Command]:
    """Add `--out`, as parameter `out`."""
    path = click.Path(path_type=Path)
    return click.option("--out", type=path, default=DEFAULT_OUT, show_default=True, metavar="DIR", help=help_text)


@chaos.command("run")
@minutes_option(DEFAULT_MINUTES, "Minutes of faults.")
@click.option(
    "--seed", type=int, help="Seed that draws faults and workloads; without it a random seed is drawn and printed."
)
@click.option("--faults", help="Kinds or families, separated by commas, `all` (the default) or `none`.")
@click.option("--workloads", help="Names, separated by commas, or `all` (the default).")
@click.option("--target", type=click.Choice(_TARGETS), default="local", show_default=True, help="System to test.")
@out_option("Parent folder of the run's directory.")
@click.option(
    "--overlap",
    type=click.IntRange(min=1),
    default=MAX_OVERLAP,
    show_default=True,
    help="Maximum number of faults at a time.",
)
@click.option(
    "--pause",
    type=click.FloatRange(min=0.0),
    default=SHORTEST_PAUSE_S,
    show_default=True,
    help="Minimum seconds between two faults if one is in force at a time; the maximum is 3.5 s more.",
)
@click.option("--engine", type=click.Choice(ENGINES), help="Engine of our cluster.  [default: that of `dledger up`]")
@click.option("--mutant", help="Run every node with this known bug, with faults that convict it.")
@click.option(
    "--swarm",
    is_flag=True,
    help="Let the seed also draw the kinds of faults, the pace, and workloads that are not named.",
)
@click.option("--keep", is_flag=True, help="Keep the nodes' data even if the run is valid.")
@click.pass_context
def run_command(
    context: click.Context,
    minutes: float,
    seed: int | None,
    faults: str | None,
    workloads: str | None,
    target: str,
    out: Path,
    overlap: int,
    pause: float,
    engine: str | None,
    mutant: str | None,
    swarm: bool,
    keep: bool,
) -> None:
    """Run once, print the verdict, write a report.

    Exit code 0: valid; 1: a promise is broken; 2: there is no verdict, or nothing was run.
    """
    from .campaign.driver import run_directory, swarm_options
    from .mutants.trials import ANYTHING, TRIALS
    from .run import RunOptions, run

    given_options = [
        name for name in _OPTIONS_OF_SWARM if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if swarm and given_options:
        raise click.UsageError(f"--swarm draws what --{given_options[0]} would say")
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    if swarm:
        named = workloads.split(",") if workloads else ()
        options = swarm_options(seed, minutes, out, workloads=named, keep_data=keep)
        if engine is not None:
            options = replace(options, engine=engine, command=f"{options.command} --engine {engine}")
    else:
        trial = TRIALS.get(mutant or "", ANYTHING)
        if "target" not in given_options:
            target = trial.target
        elif target != trial.target:
            trial = ANYTHING
        faults, workloads = faults or ",".join(trial.faults), workloads or ",".join(trial.workloads)
        command_words = [
            "dledger",
            "chaos",
            "run",
            "--minutes",
            f"{minutes:g}",
            "--seed",
            str(seed),
            "--faults",
            faults,
        ]
        command_words += ["--workloads", workloads, "--target", target]
        command_words += ["--overlap", str(overlap)] if overlap != MAX_OVERLAP else []
        command_words += ["--pause", f"{pause:g}"] if pause != SHORTEST_PAUSE_S else []
        command_words += ["--engine", engine] if engine is not None else []
        command_words += ["--mutant", mutant] if mutant else []
        options = RunOptions(
            directory=run_directory(out, seed),
            command=shlex.join(command_words),
            target=target,
            seed=seed,
            duration_s=minutes * 60,
            faults=() if faults == "none" else tuple(faults.split(",")),
            workloads=tuple(workloads.split(",")),
            engine=engine,
            mutant=mutant,
            keep_data=keep,
            pace=Pace(overlap, (pause, pause + PAUSE_SPREAD_S)),
        )
    click.echo(f"seed {seed}; the same again: {options.command}")
    try:
        result = asyncio.run(run(options, click.echo))
    except ChaosError as error:
        click.echo(f"not run: {error}", err=True)
        context.exit(EXIT_CODES["unknown"])
    except (asyncio.CancelledError, KeyboardInterrupt):
        click.echo("stopped before its end: nothing was judged", err=True)
        context.exit(EXIT_CODES["unknown"])
    if result.injected:
        click.echo("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(result.injected.items())))
    _print_result(context, result)


@chaos.command("campaign")
@click.option(
    "--runs", type=click.IntRange(min=1), required=True, help="Number of runs that the state file has in the end."
)
@minutes_option(CAMPAIGN_MINUTES, "Minutes of faults in each run.")
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    required=True,
    help="File with the sums of the runs; an existing file is continued.",
)
@out_option("Parent folder of the runs' directories.")
@click.option("--workloads", help="Names, separated by commas; without them each seed draws its own.")
@click.option("--again", is_flag=True, help="First repeat the seeds of the state file whose runs were not valid.")
@click.pass_context
def campaign_command(
    context: click.Context,
    runs: int,
    minutes: float,
    first: int,
    state: Path,
    out: Path,
    workloads: str | None,
    again: bool,
) -> None:
    """Run one seed after the other, as `run --swarm` does; several campaigns may run side by side.

    Exit code 0: all runs in the state file are valid; 1: one is not; 2: nothing was run.
    """
    from .campaign.driver import run_campaign
    from .campaign.figures import figures

    try:
        done = run_campaign(
            runs=runs,
            minutes=minutes,
            first=first,
            out=out,
            state=state,
            say=click.echo,
            workloads=workloads.split(",") if workloads else (),
            again=again,
        )
    except ChaosError as error:
        click.echo(f"not run: {error}", err=True)
        context.exit(EXIT_CODES["unknown"])
    except (asyncio.CancelledError, KeyboardInterrupt):
        click.echo(f"stopped; the same command goes on behind the runs in {state}", err=True)
        context.exit(EXIT_CODES["unknown"])
    click.echo(figures([done]))
    context.exit(any(run.verdict != "valid" for run in done.runs))


@chaos.command("figures")
@click.argument("states", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True, metavar="STATE...")
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Put the table into this page.")
def figures_command(states: Sequence[Path], page: Path | None) -> None:
    """Print the sums of campaigns as a table."""
    from .campaign.figures import figures, write_figures
    from .campaign.totals import load_totals

    try:
        campaigns = [load_totals(state) for state in states]
    except ChaosError as error:
        raise click.ClickException(str(error)) from error
    if page is None:
        click.echo(figures(campaigns))
    else:
        write_figures(page, campaigns)


@chaos.command("check")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.pass_context
def check_command(context: click.Context, directory: Path) -> None:
    """Judge a finished run again; DIR is the run's directory, with the data of its nodes."""
    from .history import HistoryError
    from .run import check

    try:
        result = check(directory)
    except (HistoryError, msgspec.DecodeError) as error:
        raise click.ClickException(f"{directory} holds no finished run: {error}") from error
    _print_result(context, result)


@chaos.command("faults")
@output_option
def faults_command(output: str) -> None:
    """List the kinds of faults by family."""
    from .faults import KINDS

    rows = [FaultRow(kind.name, kind.family, kind.summary) for kind in KINDS.values()]
    emit(rows, output, lambda _: "\n".join(f"{row.family:<10} {row.name:<20} {row.summary}" for row in rows))


@chaos.command("workloads")
@output_option
def workloads_command(output: str) -> None:
    """List the workloads."""
    from .workloads.registry import WORKLOADS

    rows = [
        WorkloadRow(entry.name, entry.target, entry.summary, entry.unavailable() or None)
        for entry in WORKLOADS.values()
    ]
    emit(rows, output, lambda _: "\n".join(map(_format_workload, rows)))


@chaos.command("mutants")
@output_option
def mutants_command(output: str) -> None:
    """List the known bugs that nodes can run with, the promise each breaks, and the faults that convict it."""
    from dledger_sim.brokers.mutants import MUTANTS

    from .mutants.trials import TRIALS

    rows = [MutantRow(mutant.name, mutant.breaks, TRIALS.get(mutant.name)) for mutant in MUTANTS.values()]
    emit(rows, output, lambda _: "\n".join(map(_format_mutant, rows)))


def _format_workload(row: WorkloadRow) -> str:
    not_here = f" (not here: {row.obstacle})" if row.obstacle else ""
    return f"{row.name:<12} {row.target:<9} {row.summary}{not_here}"


def _format_mutant(row: MutantRow) -> str:
    line = f"{row.name:<28} {row.breaks}"
    if row.trial is None:
        return line
    where = "" if row.trial.target == "local" else f" on {row.trial.target}"
    return f"{line}\n{'':<28}   {', '.join(row.trial.workloads)}{where} under {', '.join(row.trial.faults)}"


def _print_result(context: click.Context, result: RunResult) -> None:
    for line in _format_verdicts(result.verdicts):
        click.echo(line)
    from .checkers.judge import headline

    click.echo(f"{headline(result.verdicts)}: {result.report}")
    context.exit(EXIT_CODES[result.verdict])


def _format_verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.result:<8} {verdict.name:<22} {verdict.summary}")
        if verdict.result != "valid":
            lines += [f"         {example}" for example in verdict.examples]
    return lines
