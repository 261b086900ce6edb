"""`python -m bench.peers.run` (`make bench-peers`): measures other services and ours, prints one table, keeps the
figures.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from bench.limits import measure_limits
from bench.peers.kafka import Kafka
from bench.peers.measuring import Settings, fetch_all, measure
from bench.peers.nats import Nats
from bench.peers.ours import Ours, interpreter_build
from bench.peers.results import OURS, Comparison, decode, encode
from bench.peers.rocketmq import Rocketmq
from bench.peers.rows import ROWS
from bench.peers.service import Service, Timing
from bench.peers.table import markdown, terminal_table
from bench.run import describe_machine
from bench.stopping import stop_on_sigterm
from dledger_sim.log.figures import write_section

PEERS: Final[dict[str, Callable[[], Service]]] = {"nats": Nats, "kafka": Kafka, "rocketmq": Rocketmq}
RUNS_DIR: Final = Path(__file__).resolve().parents[1] / "runs"
BEGIN: Final = "<!-- figures: written by python -m bench.peers.run --page -->"
END: Final = "<!-- end of figures -->"
_PIPED_WIDTH: Final = 160  # columns; a pipe has no width of its own


@click.command()
@click.option(
    "--peers",
    default=",".join(PEERS),
    show_default=True,
    help="Measure only these services and ours, separated by commas.",
)
@click.option("--rows", default=",".join(ROWS), show_default=True, help="Measure only these rows, separated by commas.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1), help="Number of turns of every service.")
@click.option(
    "--seconds",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0.1, 600),
    help="Measured time of a row, in seconds.",
)
@click.option(
    "--warmup",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0, 60),
    help="Warm-up before the measurement, in seconds.",
)
@click.option(
    "--backlog", default=300_000, show_default=True, type=click.IntRange(1000), help="Number of messages to consume."
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the nodes' files, on the disk to be measured. Default: the system's temporary directory.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the results. Default: a dated file in bench/runs.",
)
@click.option("--about", default="", help="Note for readers of the figures, for example other work on the machine.")
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Put the table into this page.")
@click.option(
    "--show", type=click.Path(exists=True, path_type=Path), help="Measure nothing: show the results in this file."
)
def main(
    *,
    peers: str,
    rows: str,
    runs: int,
    seconds: float,
    warmup: float,
    backlog: int,
    work_dir: Path | None,
    output: Path | None,
    about: str,
    page: Path | None,
    show: Path | None,
) -> None:
    """Measure other message services and ours on this machine, in turns: three nodes each, the same rows."""
    stop_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    if show is not None:
        comparison = decode(show)
    else:
        services: list[Service] = [Ours(), *(PEERS[name]() for name in _parse_names(peers, PEERS))]
        comparison = _new_comparison(services, about)
        with tempfile.TemporaryDirectory(prefix="dledger-peers-", dir=work_dir) as directory:
            timing = Timing(seconds, warmup, backlog)
            settings = Settings(_parse_names(rows, ROWS), runs, timing, Path(directory))
            output = output or RUNS_DIR / f"{comparison.date:%Y-%m-%d}-peers-{comparison.date:%H%M}.toml"
            _measure(services, settings, comparison, console, output)
    console.print(terminal_table(comparison))
    if page is not None:
        write_section(page, BEGIN, END, markdown(comparison))
    if output is not None:
        console.print(f"every run: {output}")


def _measure(
    services: Sequence[Service], settings: Settings, comparison: Comparison, console: Console, output: Path
) -> None:
    """Measure the machine, then the services. The load average is that of the machine before both."""
    load = os.getloadavg()[0]
    limits = measure_limits(settings.work_dir)
    comparison.machine |= {
        "fdatasync_64k_us": limits.fdatasync_64k_us,
        "loopback_round_trip_us": limits.loopback_round_trip_us,
        "memory_copy_gb_per_s": limits.memory_copy_gb_per_s,
        "load_average_before": round(load, 1),
    }
    with console.status("") as status:
        say = status.update if console.is_terminal else console.print
        usable = fetch_all(services, comparison, say)
        measure(usable, settings, comparison, say, partial(_write_results, output))


def _write_results(output: Path, comparison: Comparison) -> None:
    output.write_text(encode(comparison), encoding="utf-8")


def _new_comparison(services: Sequence[Service], about: str) -> Comparison:
    machine = describe_machine()
    return Comparison(
        date=datetime.now(UTC).replace(microsecond=0),
        about=about or "Nothing was said of what else the machine did.",
        command=f"make bench-peers PEERS='{' '.join(sys.argv[1:])}'" if len(sys.argv) > 1 else "make bench-peers",
        machine={
            "shared_cores": int(machine["cpus"]),
            "memory_gb": float(machine["memory_gb"]),
            "kernel": machine["kernel"],
            "python": f"{machine['python']}, {interpreter_build()}",
        },
        services={service.name: service.about for service in services},
    )


def _parse_names(text: str, known: Mapping[str, object]) -> list[str]:
    names = [name for name in text.split(",") if name and name != OURS]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
