"""`python -m bench.delayed`: measures the lateness of delayed messages, and the cost of a million waiting messages.

Lateness is the time from the moment that a message asked for to its arrival at a consumer on the same machine. Memory
is RssAnon of each of the three nodes. The time of a start runs from the start of all killed nodes to the arrival of a
new message. That message is sent with a delay of 50 ms. Only a time index that has caught up with the applied log
delivers it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import click
from msgspec.structs import replace

from bench.cluster import BenchCluster, running_cluster
from bench.compiler import build_generator
from bench.generator import Load, run_load
from bench.stopping import stop_on_sigterm
from bench.usage import anonymous_rss_mb
from dledger_client import ClientError, Producer, PullConsumer

TOPIC: Final = "delayed"
QUEUES: Final = 8
PENDING: Final = Load(connections=4, window=64, body_bytes=100, queues=QUEUES, delay_s=86_400)
IN_FLIGHT: Final = 256
SOON_MS: Final = 50
DELIVER_MS: Final = "__STARTDELIVERTIME"
BODY: Final = b"x" * 100


@click.command()
@click.option("--rate", default=2_000, show_default=True, help="Number of messages that are due in a second.")
@click.option(
    "--seconds", default=20, show_default=True, help="Length of the measurement of lateness, in seconds; 0: none."
)
@click.option(
    "--pending", default=1_000_000, show_default=True, help="Number of messages that wait; 0: measure only lateness."
)
@click.option("--plain", is_flag=True, help="Send the pending messages without a delay, to compare their cost.")
def main(*, rate: int, seconds: int, pending: int, plain: bool) -> None:
    """Measure lateness, then memory and a start."""
    stop_on_sigterm()
    directory = Path(mkdtemp(prefix="dledger-bench-"))
    try:
        with running_cluster(directory / "cluster", "sync") as cluster:
            cluster.create_topic(TOPIC, QUEUES)
            if seconds:
                asyncio.run(lateness(cluster, rate, seconds))
            if pending:
                hold(cluster, pending, replace(PENDING, delay_s=0) if plain else PENDING)
            if pending and seconds:
                asyncio.run(lateness(cluster, rate, seconds))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def lateness(cluster: BenchCluster, rate: int, seconds: int) -> None:
    """Make `rate` messages due in each of `seconds` seconds, at equal distances, and print how late they came."""
    namesrv, count = f"127.0.0.1:{cluster.namesrv_port}", rate * seconds
    first_ms = int(time.time() * 1000) + 5_000 + count
    dues = [first_ms + number * 1000 // rate for number in range(count)]
    async with PullConsumer(namesrv) as consumer, Producer(namesrv, timeout=30) as producer:
        await consumer.assign(await consumer.queues(TOPIC))
        await consumer.seek_to_end()
        began = time.perf_counter()
        for start in range(0, count, IN_FLIGHT):
            await asyncio.gather(
                *(producer.send(TOPIC, BODY, properties=_due(due)) for due in dues[start : start + IN_FLIGHT])
            )
        print(f"{count} messages sent, {count / (time.perf_counter() - began):,.0f}/s", flush=True)
        if time.time() * 1000 > first_ms:
            raise click.ClickException("sending took longer than messages wait: try a lower rate")
        late_ms: list[float] = []
        while len(late_ms) < count:
            messages = await consumer.poll(32, timeout=60)
            now_ms = time.time() * 1000
            late_ms += (now_ms - int(message.properties[DELIVER_MS]) for message in messages)
    _report(late_ms)


def _due(due_ms: int) -> dict[str, str]:
    return {DELIVER_MS: str(due_ms)}


def _report(late_ms: Sequence[float]) -> None:
    ordered = sorted(late_ms)
    shares = " ".join(f"p{share} {ordered[len(ordered) * share // 100]:.1f}" for share in (50, 90, 99))
    print(f"lateness, ms: least {ordered[0]:.1f} {shares} most {ordered[-1]:.1f}", flush=True)


def hold(cluster: BenchCluster, count: int, load: Load) -> None:
    """Send `count` messages, and start all nodes anew."""
    memory_before = _memory(cluster)
    result = run_load(
        build_generator(), load, port=cluster.leader().client_port, topic=TOPIC, seconds=1800, messages=count
    )
    print(f"{count} messages sent, delayed by {load.delay_s} s, {result.messages_per_s:,.0f}/s", flush=True)
    cluster.await_equal()
    time.sleep(5.0)  # time for background writes
    print(f"memory, MB: {memory_before} before, {_memory(cluster)} with them", flush=True)
    for node in cluster.nodes:
        cluster.kill(node)
    began = time.monotonic()
    cluster.restart(*cluster.nodes)
    asyncio.run(_first_delivery(cluster))
    print(f"started anew, and delivered, after {time.monotonic() - began:.2f} s", flush=True)
    print(f"memory, MB: {_memory(cluster)} after that", flush=True)


async def _first_delivery(cluster: BenchCluster) -> None:
    """Return once a message came that was sent with a delay. Until a node leads, every send fails."""
    namesrv = f"127.0.0.1:{cluster.namesrv_port}"
    async with PullConsumer(namesrv) as consumer, Producer(namesrv, timeout=2) as producer:
        while True:
            try:
                await consumer.assign(await consumer.queues(TOPIC))
                await consumer.seek_to_end()
                await producer.send(TOPIC, BODY, properties=_due(int(time.time() * 1000) + SOON_MS))
                while not await consumer.poll(1, timeout=10):
                    pass
                return
            except ClientError:
                await asyncio.sleep(0.02)


def _memory(cluster: BenchCluster) -> str:
    return " ".join(f"{anonymous_rss_mb(node.pid()):.0f}" for node in cluster.nodes)


if __name__ == "__main__":
    main()
