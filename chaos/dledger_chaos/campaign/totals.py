"""Totals of a campaign, in a file from which the next campaign continues."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from ..checkers.base import Result
from ..errors import ChaosError
from ..faults.power import PowerLoss
from ..faults.process import Kill
from ..report import JSON_FILE, Summary
from ..run import RunResult

_KILL_TYPES: Final = (Kill.__name__, PowerLoss.__name__)


class RunFigures(msgspec.Struct, frozen=True):
    """Figures of one run; times in seconds.

    - `acknowledged` counts acknowledged messages, and `read_back` those of them that were checked on every node at the
      end. Retention has trimmed the others.
    - `killed` counts the targets of kills and losses of power. It includes processes that another fault had just ended.
    - `waits_s` are the waits of clients when a leader was killed and no other fault was in force.
    - `broken` names the checks that decided the verdict of a run that is not valid.
    """

    seed: int
    command: str
    verdict: Result
    seconds: float
    acknowledged: int
    read_back: int
    operations: dict[str, int]
    faults: dict[str, int]
    killed: int
    waits_s: list[float]
    broken: list[str]
    directory: str
    unjudged: int = 0
    """Number of acknowledged messages that were trimmed before any check could judge them."""


class Totals(msgspec.Struct):
    """The runs of a campaign, in the order of their seeds.

    `before` has earlier runs that were not valid, of seeds that were run again.
    """

    runs: list[RunFigures] = []
    before: list[RunFigures] = []

    def next_seed(self, first: int) -> int:
        """Return the first seed from `first` on that is higher than the seeds of all runs."""
        return max([first, *(run.seed + 1 for run in self.runs)])

    def replace(self, run: RunFigures) -> None:
        """Replace the run of a seed by a new run, and keep the old one in `before`."""
        index = next(index for index, known in enumerate(self.runs) if known.seed == run.seed)
        self.before.append(self.runs[index])
        self.runs[index] = run

    @property
    def faults(self) -> Counter[str]:
        """Injected faults by kind."""
        return sum((Counter(run.faults) for run in self.runs), Counter())

    @property
    def operations(self) -> Counter[str]:
        """Operations by outcome."""
        return sum((Counter(run.operations) for run in self.runs), Counter())


def figures_of(directory: Path, result: RunResult) -> RunFigures:
    """Return the figures of a run that has been judged and left its report in `directory`."""
    summary = msgspec.json.decode((directory / JSON_FILE).read_bytes(), type=Summary)
    lost = next((verdict for verdict in summary.checks if verdict.name == "lost"), None)
    operations: Counter[str] = Counter()
    for counts in summary.operations:
        operations.update(ok=counts.ok, fail=counts.fail, info=counts.info)
    return RunFigures(
        seed=summary.run.seed,
        command=summary.run.command,
        verdict=summary.verdict,
        seconds=summary.seconds,
        acknowledged=summary.messages,
        read_back=int(lost.figures["checked"]) if lost is not None else 0,
        operations=dict(operations),
        faults=result.injected,
        killed=sum(len(fault.nodes) for fault in summary.faults if fault.values.get("type") in _KILL_TYPES),
        waits_s=summary.waits_s,
        broken=[verdict.name for verdict in summary.checks if verdict.result == summary.verdict != "valid"],
        directory=str(directory),
        unjudged=summary.unjudged,
    )


def load_totals(path: Path) -> Totals:
    """Return the totals in a file, empty totals if there is no file. Raises `ChaosError` if it holds something else."""
    if not path.exists():
        return Totals()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Totals)
    except msgspec.DecodeError as error:
        raise ChaosError(f"{path} holds no sums of a campaign: {error}") from error


def save_totals(path: Path, totals: Totals) -> None:
    """Replace the file."""
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(totals), indent=1) + b"\n")
    os.replace(unfinished, path)
