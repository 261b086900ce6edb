"""`python -m bench.idempotent`: what idempotent sends cost.

One cluster, two topics that differ in the attribute `idempotent` only, and the same load on each in turn, again and
again, each first every other time, so that whatever else the machine does falls on both, and neighbouring runs are
compared. The cost is in CPU per message, which such disturbances move little, and in throughput. What is remembered
already (`--remembered`) is looked through with every send; it is forgotten two minutes later, so leave it at loads that
are measured by then.
"""

import asyncio
import shutil
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import click

from bench.cluster import BenchCluster, running_cluster
from bench.compiler import build_generator
from bench.generator import Load, run_load
from bench.stopping import stop_on_sigterm
from bench.usage import UsageMeter
from dledger_client import Admin

TOPICS = {"ordinary": None, "idempotent": "true"}
LOADS = {"1x64": Load(), "64x1": Load(connections=64, window=1), "batches of 32": Load(batch=32)}

BEFORE = Load(connections=4, window=256, body_bytes=16)


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Runs on each topic.")
@click.option("--seconds", default=3.0, show_default=True, help="Length of a run.")
@click.option("--flush", type=click.Choice(["sync", "async"]), default="sync", show_default=True)
@click.option("--remembered", default=0, show_default=True, help="Idempotent sends before the first run.")
@click.option("--load", "names", type=click.Choice(list(LOADS)), multiple=True, help="Default: all.")
def main(rounds: int, seconds: float, flush: str, remembered: int, names: tuple[str, ...]) -> None:
    """Compare sends to an ordinary and to an idempotent topic."""
    stop_on_sigterm()
    program = build_generator()
    directory = Path(mkdtemp(prefix="dledger-bench-"))
    try:
        with running_cluster(directory / "cluster", "async" if flush == "async" else "sync") as cluster:
            asyncio.run(_create_topics(cluster))
            if remembered:
                port = cluster.leader().client_port
                run_load(program, BEFORE, port=port, topic="idempotent", seconds=300, messages=remembered)
            for name in names or LOADS:
                _compare(cluster, program, name, rounds, seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _create_topics(cluster: BenchCluster) -> None:
    async with Admin(f"127.0.0.1:{cluster.namesrv_port}") as admin:
        for topic, value in TOPICS.items():
            await admin.create_topic(topic, queues=4, attributes={"idempotent": value})


def _compare(cluster: BenchCluster, program: Path, name: str, rounds: int, seconds: float) -> None:
    rates: dict[str, list[float]] = {topic: [] for topic in TOPICS}
    costs: dict[str, list[float]] = {topic: [] for topic in TOPICS}
    leader = cluster.leader()
    pids = [leader.pid(), *(node.pid() for node in cluster.nodes if node != leader)]
    for number in range(rounds):
        for topic in TOPICS if number % 2 == 0 else reversed(TOPICS):
            meter = UsageMeter(pids)
            result = run_load(
                program,
                LOADS[name],
                port=leader.client_port,
                topic=topic,
                seconds=seconds,
                warmup_s=0.5,
                on_start=meter.begin,
                on_end=meter.end,
            )
            rates[topic].append(result.messages_per_s)
            costs[topic].append(sum(node.cpu_us_per_message for node in meter.nodes(result.messages)))
    for topic in TOPICS:
        click.echo(
            f"{name}, {topic}: {median(rates[topic]):,.0f} msg/s, CPU of all nodes {median(costs[topic]):.1f} µs/msg"
        )
    slower = median(1 - after / before for before, after in zip(rates["ordinary"], rates["idempotent"], strict=True))
    more = median(after / before - 1 for before, after in zip(costs["ordinary"], costs["idempotent"], strict=True))
    click.echo(f"{name}, medians of neighbouring runs: {-slower:+.1%} of the throughput, {more:+.1%} of the CPU")


if __name__ == "__main__":
    main()
