"""Measures how senders above a quota disturb a neighbour: `python -m bench.neighbour [--rounds 5] [--seconds 4]`.

On one group of three nodes a neighbour sends messages of 1 KiB to a topic of its own, a few at a time. It does so
alone, and while others send to another topic as fast as its quota allows, with many sends held. Both cases take turns.
The program prints how long the neighbour's sends take, and the ratio of both cases. It also prints how many sends each
quota has held and refused. The neighbour has a quota, too, which it never reaches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.cluster import running_cluster
from bench.compiler import build_generator
from bench.generator import Load, LoadResult, run_load
from dledger_client import Quota, QuotaRow, SyncAdmin

NEIGHBOUR, NOISY = "neighbour", "noisy"
NEIGHBOURS_LOAD = Load(connections=1, window=4)
NOISY_LOAD = Load(connections=4, window=32)
NOISY_PER_SECOND = 1_000
NEIGHBOURS_PER_SECOND = 1_000_000
_AROUND_S = 1.5
"""Time in seconds by which the others begin before the neighbour, and end behind it."""


class _Rows:
    """Results of the rounds of both kinds."""

    def __init__(self) -> None:
        self.alone: list[LoadResult] = []
        self.beside: list[LoadResult] = []


def measure(rounds: int, seconds: float) -> tuple[_Rows, list[QuotaRow]]:
    """Return the results of all rounds, and the final counts of the quotas."""
    program, rows = build_generator(), _Rows()
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder) / "cluster", "sync") as cluster:
        with SyncAdmin(f"127.0.0.1:{cluster.namesrv_port}") as admin:
            for topic, most in ((NEIGHBOUR, NEIGHBOURS_PER_SECOND), (NOISY, NOISY_PER_SECOND)):
                admin.create_topic(topic, queues=4)
                admin.put_quota(Quota("topic", topic, most))
            run = partial(run_load, program, port=cluster.leader().client_port)
            neighbour = partial(run, NEIGHBOURS_LOAD, topic=NEIGHBOUR, seconds=seconds)
            neighbour(warmup_s=1.0)
            with ThreadPoolExecutor(1) as pool:
                for _ in range(rounds):
                    rows.alone.append(neighbour(warmup_s=_AROUND_S))
                    noisy = pool.submit(run, NOISY_LOAD, topic=NOISY, seconds=seconds + 2 * _AROUND_S)
                    rows.beside.append(neighbour(warmup_s=_AROUND_S))
                    noisy.result()
            return rows, [row for found in admin.quotas().values() for row in found]


def shown(values: list[float], digits: int = 0) -> str:
    """Return median, lowest and highest value as text."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    rows, quotas = measure(options.rounds, options.seconds)
    print("| | µs of the neighbour's sends, median | µs, 99 % | messages a second |\n|---|---|---|---|")
    for name, runs in (("alone", rows.alone), ("beside who is held", rows.beside)):
        figures = ([run.p50_us for run in runs], [run.p99_us for run in runs], [run.messages_per_s for run in runs])
        print(f"| {name} | {' | '.join(map(shown, figures))} |")
    ratios = [
        [getattr(beside, field) / getattr(alone, field) for alone, beside in zip(rows.alone, rows.beside, strict=True)]
        for field in ("p50_us", "p99_us", "messages_per_s")
    ]
    print(f"| ratio | {' | '.join(shown(values, 2) for values in ratios)} |\n")
    for row in quotas:
        print(f"{row.name}: {row.held:,} sends held, {row.refused:,} refused")


if __name__ == "__main__":
    main()
