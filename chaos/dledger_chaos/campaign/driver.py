"""Runs one seed after another, each with its own mixture, and adds the outcome to a file."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from ..run import RunOptions, RunResult, run, workloads_named
from ..targets import TARGETS
from .swarm import draw_swarm
from .totals import RunFigures, Totals, figures_of, load_totals, save_totals

TARGET = "local"


def swarm_options(
    seed: int, minutes: float, out: Path, *, workloads: Sequence[str] = (), keep_data: bool = False
) -> RunOptions:
    """Return the options of a seed's run: with `workloads`, or with the drawn workloads that this machine can run."""
    possible = workloads_named(("all",), TARGETS[TARGET].capabilities)
    swarm = draw_swarm(seed)
    words = ["dledger", "chaos", "run", "--swarm", "--minutes", f"{minutes:g}", "--seed", str(seed)]
    words += ["--workloads", ",".join(workloads)] if workloads else []
    return RunOptions(
        directory=run_directory(out, seed),
        command=shlex.join(words),
        target=TARGET,
        seed=seed,
        duration_s=minutes * 60,
        faults=swarm.faults,
        workloads=tuple(workloads) or tuple(name for name in swarm.workloads if name in possible),
        keep_data=keep_data,
        pace=swarm.pace,
    )


def run_directory(out: Path, seed: int) -> Path:
    """Return a new name for the directory of a run."""
    return out.resolve() / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{seed}"


def run_campaign(
    *,
    runs: int,
    minutes: float,
    first: int,
    out: Path,
    state: Path,
    say: Callable[[str], None],
    workloads: Sequence[str] = (),
    again: bool = False,
) -> Totals:
    """Run one seed after the other until the file `state` has `runs` runs.

    The first seed is `first`, or follows the highest seed in the file. Every run has these `workloads`, or the
    workloads that its seed draws.

    With `again`, seeds in the file whose runs were not valid are run again first. A run that is stopped before its end
    is not written to the file, so the next campaign repeats it. Raises `ChaosError` if a run cannot even begin.
    """
    totals = load_totals(state)
    state.parent.mkdir(parents=True, exist_ok=True)
    for seed in [known.seed for known in totals.runs if again and known.verdict != "valid"]:
        totals.replace(_run(swarm_options(seed, minutes, out, workloads=workloads), say))
        save_totals(state, totals)
    while len(totals.runs) < runs:
        totals.runs.append(_run(swarm_options(totals.next_seed(first), minutes, out, workloads=workloads), say))
        save_totals(state, totals)
    return totals


def _run(options: RunOptions, say: Callable[[str], None]) -> RunFigures:
    say(options.command)
    say(f"  {', '.join(options.workloads)} under {', '.join(options.faults)}")
    result: RunResult = asyncio.run(run(options, lambda _: None))
    figures = figures_of(options.directory, result)
    say(f"  {_describe_run(figures)}")
    return figures


def _describe_run(run: RunFigures) -> str:
    counts = f"{run.acknowledged:,} messages acknowledged, {sum(run.faults.values())} faults"
    broken = f" ({', '.join(run.broken)})" if run.broken else ""
    unjudged = f" ({run.unjudged:,} acknowledged messages trimmed unjudged)" if run.unjudged else ""
    return f"{run.verdict}{unjudged}{broken}: {counts}, {run.directory}"
