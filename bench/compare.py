"""`python -m bench.compare OTHER`: measures two checkouts in turns, so that a noisy machine disturbs both alike."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from bench.compiler import BUILD_DIR
from bench.results import Report
from bench.scenarios import LOADS, QUEUES

ROOT: Final = Path(__file__).resolve().parents[1]
SCENARIOS: Final = (*LOADS, QUEUES)
SLOWER: Final = 0.92
"""Median ratio of rates below which a scenario is shown as a loss."""
DEARER: Final = 1.05
"""Median ratio of CPU times per message above which a scenario is shown as a loss."""


class Turn(msgspec.Struct, frozen=True):
    """One run of a scenario: its rate, and the CPU time of all nodes per message, None if it is not measured."""

    messages_per_s: float
    cpu_us_per_message: float | None


class Pair(msgspec.Struct, frozen=True):
    """One run of the other checkout and one of this checkout, one right after the other."""

    other: Turn
    this: Turn


class Comparison(msgspec.Struct, frozen=True):
    """All pairs of one scenario. Ratios are this checkout's figure divided by the other's, medians over the pairs."""

    pairs: list[Pair]

    @property
    def rate(self) -> float:
        """Median ratio of the rates. Above 1, this checkout is faster."""
        return statistics.median(pair.this.messages_per_s / pair.other.messages_per_s for pair in self.pairs)

    @property
    def cpu(self) -> float | None:
        """Median ratio of the CPU times. Above 1, this checkout uses more; None where CPU time is not measured."""
        ratios = [
            pair.this.cpu_us_per_message / pair.other.cpu_us_per_message
            for pair in self.pairs
            if pair.this.cpu_us_per_message is not None and pair.other.cpu_us_per_message
        ]
        return statistics.median(ratios) if ratios else None


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--scenario",
    "names",
    multiple=True,
    type=click.Choice([*LOADS, QUEUES]),
    help="Run only these scenarios. Default: all.",
)
@click.option("--pairs", default=5, show_default=True, type=click.IntRange(1), help="Runs of each checkout.")
@click.option(
    "--seconds",
    default=4.0,
    show_default=True,
    type=click.FloatRange(0.1, 600),
    help="Measured time of a run, in seconds.",
)
@click.option(
    "--output",
    default=BUILD_DIR / "comparison.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON file with every run.",
)
def main(*, other: Path, names: tuple[str, ...], pairs: int, seconds: float, output: Path) -> None:
    """Compare this checkout with the one in OTHER, whose `.venv` must have what `make bench` installs.

    Each runs its own code, one after the other. The checkout that runs first alternates from pair to pair.
    """
    console = Console(width=None if sys.stdout.isatty() else 100)
    comparisons: dict[str, Comparison] = {}
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in names or SCENARIOS:
        with console.status(f"{name}: {pairs} pairs"):
            comparisons[name] = Comparison([_pair(other.resolve(), name, seconds, turn) for turn in range(pairs)])
        # an interrupted run keeps the pairs so far
        output.write_bytes(msgspec.json.format(msgspec.json.encode(comparisons), indent=2))
    console.print(table(comparisons))
    console.print(f"every run: {output}")


def table(comparisons: dict[str, Comparison]) -> Table:
    """Return a table of the ratios, with losses in red."""
    ratios = Table("scenario", "pairs", "messages/s, this by other", "CPU per message of all nodes, this by other")
    for name, comparison in comparisons.items():
        rate, cpu = comparison.rate, comparison.cpu
        ratios.add_row(
            name,
            str(len(comparison.pairs)),
            f"{rate:.2f}" if rate >= SLOWER else f"[red]{rate:.2f}[/red]",
            "-" if cpu is None else f"{cpu:.2f}" if cpu <= DEARER else f"[red]{cpu:.2f}[/red]",
        )
    return ratios


def _pair(other: Path, name: str, seconds: float, turn: int) -> Pair:
    if turn % 2:
        this = measure(ROOT, name, seconds)
        return Pair(measure(other, name, seconds), this)
    return Pair(measure(other, name, seconds), measure(ROOT, name, seconds))


def measure(checkout: Path, name: str, seconds: float) -> Turn:
    """Run a scenario once with the code of a checkout. Raises `ClickException` with its output if that fails."""
    with tempfile.TemporaryDirectory(prefix="dledger-compare-") as directory:
        result = Path(directory) / "result.json"
        command = [str(checkout / ".venv/bin/python"), "-m", "bench.run", "--scenario", name, "--runs", "1"]
        command += ["--seconds", str(seconds), "--output", str(result)]
        try:
            ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise click.ClickException(f"{checkout} has no .venv: run make bench there once") from error
        if ran.returncode or not result.exists():
            raise click.ClickException(f"{name} in {checkout} ended with {ran.returncode}: {ran.stderr or ran.stdout}")
        return _turn(msgspec.json.decode(result.read_bytes(), type=Report), name)


def _turn(report: Report, name: str) -> Turn:
    if name == QUEUES:
        assert report.queues is not None
        return Turn(statistics.median(report.queues.many_per_s), None)
    [run] = report.loads[name].runs
    return Turn(run.load.messages_per_s, sum(node.cpu_us_per_message for node in run.nodes))


if __name__ == "__main__":
    main()
