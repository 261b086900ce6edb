"""`python -m bench.spark_beside`: measures how much slower producers are while a Spark job reads an old range.

The same producer runs alone and beside the job in turn. The job is a process group of its own that reads the old range
over and over; signals stop and continue it. Everything shares this machine's cores. The job therefore also runs at the
lowest priority (`nice -n 19`), as it would on the machine of a broker. Needs the extra `spark`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import click

from bench.compiler import build_generator
from bench.generator import Load, run_load
from bench.spark import TOPIC, fill, scan
from bench.stopping import stop_on_sigterm
from bench.usage import family_cpu_seconds
from dledger_client import SyncAdmin
from dledger_client.testing import LocalCluster
from dledger_spark.session import spark_session

SENT_TOPIC = "beside"
LOADS = {"1 x 64": Load(), "64 x 1": Load(connections=64, window=1)}


def read_forever(namesrv: str, limit: int | None) -> None:
    """Read the topic's present messages again and again, with one line after each time.

    A frame is planned only once.
    """
    spark = spark_session("local[2]", config={"spark.log.level": "ERROR", "spark.driver.memory": "1g"})
    reader = spark.read.format("dledger").options(namesrv=namesrv, subscribe=TOPIC, columns="value")
    frame = (reader if limit is None else reader.option("maxBytesPerSecond", str(limit))).load()
    while True:
        click.echo(str(scan(frame)))


@contextmanager
def job(namesrv: str, *, nice: bool, limit: int | None) -> Iterator[int]:
    """Start the job. Yields the id of its process group once it has read everything once."""
    command = [*(("nice", "-n", "19") if nice else ()), sys.executable, "-m", "bench.spark_beside", "--read", namesrv]
    if limit is not None:
        command += ["--limit", str(limit)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline().strip():
            raise click.ClickException(f"the job ended with {process.wait()}")
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compare(cluster: LocalCluster, load: Load, group: int, rounds: int, seconds: float) -> tuple[float, float, float]:
    """Return medians: messages per second alone and beside the job, and the cores that the job itself used."""
    program = build_generator()
    port = int(cluster.client_address(cluster.leader()).rpartition(":")[2])
    rates: dict[signal.Signals, list[float]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
    cores: list[float] = []
    for _ in range(rounds):
        for signal_number, group_rates in rates.items():
            os.killpg(group, signal_number)
            began, used_before = time.monotonic(), family_cpu_seconds(group)
            result = run_load(program, load, port=port, topic=SENT_TOPIC, seconds=seconds, warmup_s=0.5)
            group_rates.append(result.messages_per_s)
            if signal_number is signal.SIGCONT:
                cores.append((family_cpu_seconds(group) - used_before) / (time.monotonic() - began))
    return median(rates[signal.SIGSTOP]), median(rates[signal.SIGCONT]), median(cores)


@click.command()
@click.option(
    "--messages",
    default=200_000,
    show_default=True,
    type=click.IntRange(1000),
    help="Number of messages in the old range.",
)
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Number of runs alone and beside the job."
)
@click.option("--seconds", default=3.0, show_default=True, help="Length of a run, in seconds.")
@click.option(
    "--limit",
    type=click.IntRange(65_536),
    help="Also run a job with this `maxBytesPerSecond` for each of its two tasks.",
)
@click.option("--read", "namesrv", hidden=True, help="Run as the job.")
def main(*, messages: int, rounds: int, seconds: float, limit: int | None, namesrv: str | None) -> None:
    """Measure sends alone and beside a job on this machine."""
    if namesrv is not None:
        read_forever(namesrv, limit)
    stop_on_sigterm()
    jobs: dict[str, tuple[bool, int | None]] = {"job at same priority": (False, None)}
    jobs["job at lowest priority"] = (True, None)
    if limit is not None:
        jobs[f"job of {2 * limit / 1e6:g} MB/s"] = (False, limit)
    with LocalCluster() as cluster:
        asyncio.run(fill(cluster.namesrv, messages, 1024))
        with SyncAdmin(cluster.namesrv) as admin:
            admin.create_topic(SENT_TOPIC, queues=4)
        for job_name, (nice, job_limit) in jobs.items():
            with job(cluster.namesrv, nice=nice, limit=job_limit) as group:
                for name, load in LOADS.items():
                    alone, beside, cores = compare(cluster, load, group, rounds, seconds)
                    click.echo(
                        f"{name}, {job_name}: {alone:,.0f} alone, {beside:,.0f} beside it: {beside / alone:.0%};"
                        f" the job took {cores:.2f} cores"
                    )


if __name__ == "__main__":
    main()
