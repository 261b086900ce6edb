"""The totals of campaigns as a section of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dledger_sim.log.figures import write_section

from ..checkers.recovery import percentile
from ..faults import KINDS, FaultKind
from .totals import RunFigures, Totals

BEGIN: Final = "<!-- chaos figures: written by dledger chaos figures -->"
END: Final = "<!-- end of chaos figures -->"

_FAULT_CLASSES: Final[Mapping[str, Callable[[FaultKind], bool]]] = {
    "SIGKILL": lambda kind: kind.name.startswith("kill-"),
    "losses of power": lambda kind: kind.family == "power",
    "partitions": lambda kind: kind.name.startswith("partition-"),
    "other faults of processes": lambda kind: kind.family == "process",
    "other faults of links": lambda kind: kind.family == "network",
    "faults of disks": lambda kind: kind.family == "disk",
    "faults of clocks": lambda kind: kind.family == "clock",
    "changes of members": lambda kind: kind.family == "membership",
}
"""Classes of faults on the page. A kind counts in the first class whose condition it meets."""


def figures(campaigns: Sequence[Totals]) -> str:
    """Return the section of the page in Markdown: the runs, their faults and their results."""
    runs = [run for campaign in campaigns for run in campaign.runs]
    totals = Totals(runs)
    verdicts = {name: sum(run.verdict == name for run in runs) for name in ("valid", "invalid", "unknown")}
    rows = [
        ("runs", f"{len(runs):,}: {_format_counts(verdicts)}"),
        ("hours", f"{sum(run.seconds for run in runs) / 3600:.1f}"),
        ("seeds", _format_seed_ranges(sorted(run.seed for run in runs))),
        ("messages acknowledged", f"{sum(run.acknowledged for run in runs):,}"),
        ("of these found on every node at the end", f"{sum(run.read_back for run in runs):,}"),
        ("operations checked", f"{totals.operations.total():,}: {_format_counts(totals.operations)}"),
        *(
            (name, f"{sum(kinds.values()):,}: {_format_counts(kinds)}")
            for name, kinds in _count_by_class(totals.faults).items()
        ),
        ("processes that kills and losses of power were aimed at", f"{sum(run.killed for run in runs):,}"),
    ]
    waits_s = [wait_s for run in runs for wait_s in run.waits_s]
    if waits_s:
        p50, p99 = percentile(waits_s, 0.5), percentile(waits_s, 0.99)
        rows.append(
            (
                "how long clients waited when a leader was killed and nothing else was wrong",
                f"{len(waits_s):,} waits: p50 {p50:.2f} s, p99 {p99:.2f} s, longest {max(waits_s):.2f} s",
            )
        )
    rows += [(f"seed {run.seed}: {run.verdict}", _describe_failure(run)) for run in runs if run.verdict != "valid"]
    rows += [
        (f"seed {run.seed}, before it was run again: {run.verdict}", _describe_failure(run))
        for campaign in campaigns
        for run in campaign.before
    ]
    return "\n".join(("| what | how much |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)))


def write_figures(page: Path, campaigns: Sequence[Totals]) -> None:
    """Replace the section between the marks of a page, or append one.  Raises `OSError`."""
    write_section(page, BEGIN, END, figures(campaigns))


def _describe_failure(run: RunFigures) -> str:
    return f"{', '.join(run.broken)}: `{run.command}`"


def _count_by_class(faults: Mapping[str, int]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for name, kind in KINDS.items():
        if faults.get(name):
            label = next(label for label, belongs in _FAULT_CLASSES.items() if belongs(kind))
            counts.setdefault(label, {})[name] = faults[name]
    return {label: counts[label] for label in _FAULT_CLASSES if label in counts}


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _format_seed_ranges(seeds: Sequence[int]) -> str:
    """Return seeds as ranges: `1 to 10, 101`."""
    ranges: list[list[int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1][1:] = [seed]
        else:
            ranges.append([seed])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges)
