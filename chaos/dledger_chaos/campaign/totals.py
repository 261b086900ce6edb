"""Totals of a campaign, in a file that the next one goes on from."""

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

_KILLS: Final = (Kill.__name__, PowerLoss.__name__)


class RunFigures(msgspec.Struct, frozen=True):
    """One run; times in seconds.

    `acknowledged` messages were, `read_back` of them were found on every node at the end: retention trims the others.
    `killed` counts the processes that kills and losses of power were aimed at: one that another fault had ended just
    before counts as well.  `waits_s` are those of clients when a leader was killed and nothing else was wrong; `broken`
    names the checks whose verdict the run has, unless it is valid.
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


class Totals(msgspec.Struct):
    """The runs of a campaign, in the order of their seeds.

    `before` has those that were not valid and whose seeds were run again, once what they had found was mended.
    """

    runs: list[RunFigures] = []
    before: list[RunFigures] = []

    def next_seed(self, first: int) -> int:
        """The first seed from `first` on that has not been run, nor any behind it."""
        return max([first, *(run.seed + 1 for run in self.runs)])

    def replace(self, run: RunFigures) -> None:
        """A seed was run again."""
        place = next(place for place, known in enumerate(self.runs) if known.seed == run.seed)
        self.before.append(self.runs[place])
        self.runs[place] = run

    @property
    def faults(self) -> Counter[str]:
        """Injected faults by kind."""
        return sum((Counter(run.faults) for run in self.runs), Counter())

    @property
    def operations(self) -> Counter[str]:
        """Operations by outcome."""
        return sum((Counter(run.operations) for run in self.runs), Counter())


def figures_of(directory: Path, result: RunResult) -> RunFigures:
    """The figures of a run that has been judged and left its report in `directory`."""
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
        killed=sum(len(fault.nodes) for fault in summary.faults if fault.values.get("type") in _KILLS),
        waits_s=summary.waits_s,
        broken=[verdict.name for verdict in summary.checks if verdict.result == summary.verdict != "valid"],
        directory=str(directory),
    )


def load_totals(path: Path) -> Totals:
    """The totals in a file; none yet if there is no file.  Raises `ChaosError` if it holds something else."""
    if not path.exists():
        return Totals()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Totals)
    except msgspec.DecodeError as error:
        raise ChaosError(f"{path} holds no sums of a campaign: {error}") from error


def save_totals(path: Path, totals: Totals) -> None:
    """Replace the file."""
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(totals), indent=1) + b"\n")
    os.replace(beside, path)
