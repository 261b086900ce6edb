"""`python -m bench.idempotent`: measures what idempotent sends cost.

One cluster has two topics that differ only in the attribute `idempotent`. One load sends to them in turns of 100 ms, so
that other work on the machine disturbs both alike. Each send looks through the remembered sends (`--remembered`), which
are forgotten two minutes later.
"""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from tempfile import mkdtemp

import click

from bench.cluster import BenchCluster, running_cluster
from bench.compiler import build_generator
from bench.generator import Load, run_load
from bench.stopping import stop_on_sigterm
from dledger_client import Admin

TOPICS = {"ordinary": None, "idempotent": "true"}
LOADS = {"1x64": Load(), "64x1": Load(connections=64, window=1), "batches of 32": Load(batch=32)}

BEFORE = Load(connections=4, window=256, body_bytes=16)
PARTS = 10
"""Number of parts of a run that are also compared separately, to see how far they differ."""


@click.command()
@click.option("--seconds", default=30.0, show_default=True, help="Length of the run of each load, in seconds.")
@click.option("--flush", type=click.Choice(["sync", "async"]), default="sync", show_default=True)
@click.option("--remembered", default=0, show_default=True, help="Number of idempotent sends before the first run.")
@click.option(
    "--load", "names", type=click.Choice(list(LOADS)), multiple=True, help="Run only these loads. Default: all."
)
def main(seconds: float, flush: str, remembered: int, names: tuple[str, ...]) -> None:
    """Compare sends to an ordinary topic and to an idempotent topic."""
    stop_on_sigterm()
    program = build_generator()
    directory = Path(mkdtemp(prefix="dledger-bench-"))
    try:
        with running_cluster(directory / "cluster", "async" if flush == "async" else "sync") as cluster:
            asyncio.run(_create_topics(cluster))
            port = cluster.leader().client_port
            if remembered:
                run_load(program, BEFORE, port=port, topic="idempotent", seconds=300, messages=remembered)
            for name in names or LOADS:
                result = run_load(
                    program,
                    LOADS[name],
                    port=port,
                    topic="ordinary",
                    other_topic="idempotent",
                    seconds=seconds,
                    warmup_s=1,
                )
                _report(name, result.messages_of_turn)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _create_topics(cluster: BenchCluster) -> None:
    async with Admin(f"127.0.0.1:{cluster.namesrv_port}") as admin:
        for topic, value in TOPICS.items():
            await admin.create_topic(topic, queues=4, attributes={"idempotent": value})


def _report(name: str, messages_of_turn: Sequence[int]) -> None:
    """Print the rates of both topics, and their difference in the whole run and in its parts."""
    rounds = [messages_of_turn[begin : begin + 4] for begin in range(0, len(messages_of_turn) - 3, 4)]
    ordinary = [first + last for first, _, _, last in rounds]
    idempotent = [second + third for _, second, third, _ in rounds]
    per_part = max(1, len(rounds) // PARTS)
    parts = [
        sum(idempotent[begin : begin + per_part]) / max(1, sum(ordinary[begin : begin + per_part])) - 1
        for begin in range(0, len(rounds), per_part)
    ]
    lower, _, upper = quantiles(parts)
    seconds = len(rounds) * 0.2
    click.echo(
        f"{name}: {sum(ordinary) / seconds:,.0f} msg/s ordinary, {sum(idempotent) / seconds:,.0f} idempotent: "
        f"{sum(idempotent) / sum(ordinary) - 1:+.1%} (half of {len(parts)} parts between {lower:+.1%} and {upper:+.1%})"
    )


if __name__ == "__main__":
    main()
