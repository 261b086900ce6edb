"""`python -m bench.run`: measures, prints tables, writes JSON."""

import os
import platform
import sys
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench.compiler import BUILD_DIR, NoCompilerError, build_generator
from bench.limits import measure_limits
from bench.report import show
from bench.results import Report
from bench.scenarios import (
    CROWDS,
    FAILOVER,
    IDLE,
    LOADS,
    NAMES,
    QUEUES,
    RESTART,
    Settings,
    measure_crowd,
    measure_failovers,
    measure_idle,
    measure_load,
    measure_queues,
    measure_restarts,
)
from bench.stopping import stop_on_sigterm
from dledger.types import ENGINES, NATIVE_ENGINE

_PIPED_WIDTH = 130  # columns; a pipe has no width of its own


@click.command()
@click.option(
    "--scenario", "names", multiple=True, type=click.Choice(NAMES), help="Run only these scenarios. Default: all."
)
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Number of runs per scenario.")
@click.option(
    "--seconds",
    default=4.0,
    show_default=True,
    type=click.FloatRange(0.1, 600),
    help="Measured time of a run, in seconds.",
)
@click.option(
    "--warmup",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 60),
    help="Warm-up before the measurement, in seconds.",
)
@click.option(
    "--kills", default=20, show_default=True, type=click.IntRange(1), help="Number of leaders that `failover` kills."
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default=NATIVE_ENGINE, show_default=True, help="Engine of all nodes."
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the clusters' files, on the disk to be measured. Default: the system's temporary directory.",
)
@click.option(
    "--output",
    default=BUILD_DIR / "result.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON file with every run.",
)
def main(
    *,
    names: tuple[str, ...],
    runs: int,
    seconds: float,
    warmup: float,
    kills: int,
    engine: str,
    work_dir: Path | None,
    output: Path,
) -> None:
    """Measure speed and memory of a three-node cluster on this machine, beside the machine's own limits."""
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    try:
        program = build_generator()
    except NoCompilerError as error:
        raise click.ClickException(str(error)) from error
    if work_dir is not None:
        work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dledger-bench-", dir=work_dir) as directory:
        settings = Settings(program, Path(directory), runs, seconds, warmup, kills, engine)
        report = measure(names or NAMES, settings, console)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    show(report, console)
    console.print(f"every run: {output}")


def measure(names: tuple[str, ...], settings: Settings, console: Console) -> Report:
    """Run the named scenarios one after the other."""
    with console.status("this machine's limits"):
        report = Report(
            machine=describe_machine(),
            limits=measure_limits(settings.work_dir),
            loads={},
            idle=[],
            failover=None,
        )
    for name in names:
        with console.status(f"{name}: {settings.kills if name == FAILOVER else settings.runs} runs"):
            if name == IDLE:
                report.idle = [measure_idle(settings) for _ in range(settings.runs)]
            elif name == FAILOVER:
                report.failover = measure_failovers(settings)
            elif name == RESTART:
                report.restart = measure_restarts(settings)
            elif name in CROWDS:
                report.crowds[name] = measure_crowd(name, settings)
            elif name == QUEUES:
                report.queues = measure_queues(settings)
            else:
                report.loads[name] = measure_load(LOADS[name], settings)
    return report


def describe_machine() -> dict[str, str]:
    """Return the facts about the machine that a reader of the figures needs."""
    return {
        "cpus": str(len(os.sched_getaffinity(0))),
        "memory_gb": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f}",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
