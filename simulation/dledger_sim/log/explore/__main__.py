"""Command line of the explorer, `python -m dledger_sim.log.explore`: every interleaving within bounds.

The exit code is 0 if no promise was broken, and 1 if one was. With `--mutant` it is the other way round: 1 means that
nothing caught the mutant.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import click

from dledger_sim.log.explore.bounds import Bounds
from dledger_sim.log.explore.prefixes import PREFIXES
from dledger_sim.log.explore.search import Found, Progress, search
from dledger_sim.log.explore.story import tell
from dledger_sim.log.mutants import MUTANTS


def _bounds(prefix: str | None, given: dict[str, int | bool | None]) -> Bounds:
    base = PREFIXES[prefix].bounds if prefix else Bounds()
    known = {field.name for field in fields(Bounds)}
    changes: dict[str, Any] = {name: value for name, value in given.items() if name in known and value is not None}
    return replace(base, **changes)


@click.command()
@click.option("--nodes", type=int, help="Number of nodes.  [default: 3]")
@click.option("--spare", type=int, help="Number of nodes that are no members at first.  [default: 0]")
@click.option("--terms", type=int, help="Maximum term of a campaign.  [default: 2]")
@click.option(
    "--entries",
    type=int,
    help="Maximum number of entries in a leader's log, no-ops included.  [default: 2]",
)
@click.option(
    "--crashes", type=int, help="Maximum number of crashes, each with every choice of lost data.  [default: 0]"
)
@click.option("--drops", type=int, help="Maximum number of lost messages.  [default: 0]")
@click.option("--duplicates", type=int, help="Maximum number of messages that arrive twice.  [default: 0]")
@click.option("--in-flight", type=int, help="Maximum number of messages in flight; 0: no limit.  [default: 2]")
@click.option("--heartbeats", type=int, help="Maximum number of leaders' heartbeats.  [default: 0]")
@click.option(
    "--resignations",
    type=int,
    help="Maximum number of leaders that step down because they hear no majority.  [default: 0]",
)
@click.option("--transfers", type=int, help="Maximum number of transfers of leadership.  [default: 0]")
@click.option("--membership", type=int, help="Maximum number of membership steps.  [default: 0]")
@click.option("--one-entry-messages/--runs", default=None, help="Let an append message carry one entry.")
@click.option(
    "--pre-votes/--no-pre-votes", default=None, help="Send pre-votes as messages, instead of granting each of them."
)
@click.option("--prompt-saves/--late-saves", default=None, help="Let nothing but a crash happen before a save.")
@click.option("--prompt-syncs/--late-syncs", default=None, help="Let nothing but a crash happen before a sync.")
@click.option(
    "--prompt-syncs-at-last/--late-syncs-at-last",
    default=None,
    help="As --prompt-syncs, but only once no crash is left.",
)
@click.option(
    "--prefix",
    type=click.Choice(sorted(PREFIXES)),
    help="Begin with the state at the end of this script, and with its bounds.",
)
@click.option("--mutant", type=click.Choice(sorted(MUTANTS)), help="Switch on this known bug, which must be caught.")
@click.option("--jobs", default=2, show_default=True, help="Number of processes.")
@click.option("--states", type=int, help="Stop at the end of the level that reaches this many distinct states.")
@click.option("--minutes", type=float, help="Stop after this time.")
def main(
    prefix: str | None,
    mutant: str | None,
    jobs: int,
    states: int | None,
    minutes: float | None,
    **given: int | bool | None,
) -> None:
    """Take real cores through every interleaving within bounds, and judge every state."""
    bounds = _bounds(prefix, given)
    print(bounds)
    seconds = float("inf") if minutes is None else minutes * 60
    with ExitStack() as stack:
        if mutant:
            stack.enter_context(MUTANTS[mutant].applied())
        found = search(bounds, prefix=prefix or "", jobs=jobs, most_states=states, seconds=seconds, report=_report)
        _summarise(found)
        if found.trail is not None:
            for line in tell(bounds, prefix or "", found.trail):
                print(line)
    broken = found.trail is not None
    if mutant:
        print(f"mutant {mutant}: {'caught' if broken else 'NOT caught'}")
        sys.exit(0 if broken else 1)
    sys.exit(1 if broken else 0)


def _report(progress: Progress) -> None:
    rate = progress.states / progress.seconds if progress.seconds else 0.0
    print(
        f"depth {progress.depth:3}: {progress.states:,} states, {progress.frontier:,} to go on from,"
        f" {progress.transitions:,} transitions, {progress.seconds:.1f} s, {rate:,.0f} states/s",
        flush=True,
    )


def _summarise(found: Found) -> None:
    progress = found.progress
    if found.trail is not None:
        end = "a promise is broken"
    else:
        end = "complete: nothing else can happen within these bounds" if found.complete else "not complete: stopped"
    print(
        f"{progress.states:,} distinct states, depth {progress.depth}, {progress.transitions:,} transitions,"
        f" {found.core_steps:,} different steps of the core, {progress.seconds:.1f} s; {end}"
    )


if __name__ == "__main__":
    main()
