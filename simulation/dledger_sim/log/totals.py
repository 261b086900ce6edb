"""Totals of a campaign, in a file that the next campaign continues."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec

from dledger_sim.log.cases import Case
from dledger_sim.log.kinds import CLASSES
from dledger_sim.log.run import Outcome

OPERATIONS = ("ok", "fail", "info", "read", "commit", "topic changed")
"""Counts of a trial that are operations of clients. Each such operation is checked."""


class Totals(msgspec.Struct):
    """Sums over seeds. Times are in seconds."""

    next_seed: int = 1
    seeds: int = 0
    broken: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    committed: int = 0
    terms: int = 0
    operations: int = 0
    by_scenario: dict[str, int] = {}
    fault_classes: dict[str, int] = {}
    counts: dict[str, int] = {}
    faults: dict[str, int] = {}
    happened: dict[str, int] = {}
    violations: list[Case] = []

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a seed."""
        self.next_seed = max(self.next_seed, outcome.case.seed + 1)
        self.seeds += 1
        self.simulated_s += outcome.seconds
        self.cpu_s += outcome.cpu_s
        self.events += outcome.events
        self.committed += outcome.committed
        self.terms += outcome.terms
        self.operations += sum(outcome.counts[name] for name in OPERATIONS)
        _add(self.by_scenario, {outcome.case.scenario: 1})
        _add(self.counts, outcome.counts)
        _add(self.faults, outcome.injected)
        _add(self.happened, outcome.happened)
        for kind, count in outcome.injected.items():
            _add(self.fault_classes, {CLASSES[kind]: count})
        if outcome.violation is not None:
            self.broken += 1
            self.violations.append(outcome.case)


def _add(sums: dict[str, int], more: Counter[str] | dict[str, int]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count


def load_totals(path: Path | None) -> Totals:
    """Return the totals in a file, or empty totals without a file. Raises `msgspec.ValidationError`."""
    if path is None or not path.exists():
        return Totals()
    return msgspec.json.decode(path.read_bytes(), type=Totals)


def save_totals(path: Path, totals: Totals) -> None:
    """Replace the file."""
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(totals), indent=1) + b"\n")
    os.replace(beside, path)
