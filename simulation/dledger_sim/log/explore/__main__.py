"""`python -m dledger_sim.log.explore`: every interleaving within bounds.

Exit code 0: no promise was broken; 1: one was (with `--mutant`: none was, so the mutant got away).
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
@click.option("--nodes", type=int, help="Nodes.  [default: 3]")
@click.option("--spare", type=int, help="How many of them are no members at first.  [default: 0]")
@click.option("--terms", type=int, help="Nobody campaigns for a higher term.  [default: 2]")
@click.option("--entries", type=int, help="Leaders append while their log holds fewer, no-ops included.  [default: 2]")
@click.option("--crashes", type=int, help="Crashes, each with every choice of what is lost.  [default: 0]")
@click.option("--drops", type=int, help="Messages that are lost.  [default: 0]")
@click.option("--duplicates", type=int, help="Messages that arrive twice.  [default: 0]")
@click.option("--in-flight", type=int, help="Messages in flight; 0: no limit.  [default: 2]")
@click.option("--heartbeats", type=int, help="Heartbeats of leaders.  [default: 0]")
@click.option("--resignations", type=int, help="Leaders that step down for hearing no majority.  [default: 0]")
@click.option("--transfers", type=int, help="Transfers of leadership.  [default: 0]")
@click.option("--membership", type=int, help="Membership steps.  [default: 0]")
@click.option("--one-entry-messages/--runs", default=None, help="An append carries one entry.")
@click.option("--pre-votes/--no-pre-votes", default=None, help="Pre-votes are messages, not granted to whoever asks.")
@click.option("--prompt-saves/--late-saves", default=None, help="Only a crash comes before a save.")
@click.option("--prompt-syncs/--late-syncs", default=None, help="Only a crash comes before a sync.")
@click.option("--prompt-syncs-at-last/--late-syncs-at-last", default=None, help="The same once no crash is left.")
@click.option("--prefix", type=click.Choice(sorted(PREFIXES)), help="Begin where a script leads, with its bounds.")
@click.option("--mutant", type=click.Choice(sorted(MUTANTS)), help="Switch a known bug on: it must be caught.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--states", type=int, help="Stop at the end of the level that reaches so many distinct states.")
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
