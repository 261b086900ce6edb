"""`python -m bench.backlog`: consumes a long backlog of small messages from its start, from disk, while sends go on.

The kernel is told to drop the page cache of the nodes' files first (`posix_fadvise`). The consumer's first pulls, and
the nodes' read-ahead, then need the disk. Sends run alone first and then beside the consumer, on a topic of their own.
Memory is RssAnon, sampled twice a second while the backlog is consumed. The program ends with exit code 1 in any of
these cases:

- A message is missing, or a request was answered with an error.
- A node's memory grew by more than `GROWTH_MB`.
- The node that was consumed from read less than `FROM_DISK` of the backlog from its disk.
- Sends were slower beside the consumer than alone by more than `SLOWER`, 15 %.

The last rule compares the median rate of the runs beside the consumer with the median of three runs alone. The last run
beside the consumer may outlast it. Other work on the machine has the same effect as a slow node.

Sends are judged beside a backlog of `JUDGED_MESSAGES`, 30,000,000, or more. A shorter backlog is over in a few runs,
beside which sends lose more (docs/performance/features.md). The loss is then only printed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Final, Self

import click

from bench.cluster import BenchCluster, BenchNode, running_cluster
from bench.compiler import build_generator
from bench.generator import Load, LoadResult, run_load
from bench.stopping import stop_on_sigterm
from bench.usage import anonymous_rss_mb, disk_read_mb

BACKLOG, BESIDE = "backlog", "beside"
QUEUES: Final = 8
FILL: Final = Load(connections=QUEUES, window=8, batch=32, body_bytes=100, queues=QUEUES)
CONSUME: Final = Load(mode="pull", queues=QUEUES)
SENDS: Final = Load(connections=1, window=64, body_bytes=1024)
LIMIT_S: Final = 3_600.0
SAMPLE_S: Final = 0.5
GROWTH_MB: Final = 64
"""Maximum growth of a node's memory while a backlog of any length is consumed, in MB: buffers of its connections."""
FROM_DISK: Final = 0.5
"""Minimum share of the backlog that must come from the disk. With less, the backlog was in memory."""
SLOWER: Final = 0.15
"""Maximum share of their rate that sends may lose to a consumer that reads old messages from disk."""
JUDGED_MESSAGES: Final = 30_000_000
"""Minimum length of a backlog whose consumer runs long enough for the sends beside it to be judged."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a backlog of `messages`: its consumer, sends without and beside it, growth of the nodes' memory.

    The backlog took `stored_mb` of the log. After the page cache was dropped, the consumer's node read `read_mb` from
    disk.
    """

    messages: int
    stored_mb: float
    read_mb: float
    consumed: LoadResult
    alone: Sequence[LoadResult]
    beside: Sequence[LoadResult]
    grown_mb: Mapping[str, float]


@click.command()
@click.option("--messages", default=JUDGED_MESSAGES, show_default=True, help="Messages of 100 bytes in the backlog.")
@click.option("--seconds", default=10.0, show_default=True, help="Length of each run of sends.")
@click.option(
    "--work-dir", type=click.Path(path_type=Path), help="Folder of the cluster. Default: a temporary directory."
)
def main(messages: int, seconds: float, work_dir: Path | None) -> None:
    """Fill, drop the page cache, and consume while sends go on.

    Fails on errors, missing messages, growing memory, and a backlog that was not read from disk. With 30,000,000
    messages or more, it also fails if sends lose more than 15 % of their rate to the consumer. With fewer messages the
    loss is only printed.
    """
    stop_on_sigterm()
    directory = Path(mkdtemp(prefix="dledger-bench-", dir=work_dir))
    try:
        with running_cluster(directory / "cluster", "sync") as cluster:
            measured = measure(cluster, messages, seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if wrong := [*what_is_wrong(measured), *what_is_slow(measured)]:
        raise click.ClickException("; ".join(wrong))


def measure(cluster: BenchCluster, messages: int, seconds: float) -> Measured:
    """Print and return the results of filling, sending alone, and consuming beside sends."""
    program = build_generator()
    cluster.create_topic(BACKLOG, QUEUES)
    cluster.create_topic(BESIDE, QUEUES)
    leader = cluster.leader()
    load = partial(run_load, program, port=leader.client_port)
    began = time.monotonic()
    load(FILL, topic=BACKLOG, seconds=LIMIT_S, messages=messages)
    cluster.await_equal()
    stored_mb = cluster.log_bytes() / 1e6
    print(f"{messages} messages stored in {time.monotonic() - began:.0f} s, log {stored_mb / 1e3:.2f} GB")
    send = partial(load, SENDS, topic=BESIDE, seconds=seconds)
    alone = [send(warmup_s=1.0) for _ in range(3)]
    cluster.await_equal()
    read_before_mb = disk_read_mb(leader.pid())
    cluster_bytes = forget_page_cache(cluster.data_dir)
    print(f"page cache of {cluster_bytes / 1e9:.2f} GB given back")
    before = {node.node_id: anonymous_rss_mb(node.pid()) for node in cluster.nodes}
    cold = _count_cold_reads(cluster.nodes)
    with ThreadPoolExecutor(1) as pool, _Memory(cluster.nodes) as memory:
        began = time.monotonic()
        consuming = pool.submit(load, CONSUME, topic=BACKLOG, seconds=LIMIT_S, messages=messages)
        consuming.add_done_callback(lambda _: memory.stop())
        beside: list[LoadResult] = []
        while not consuming.done():
            beside.append(send())
        consumed = consuming.result()
        took = memory.stopped_at - began
    read_mb = disk_read_mb(leader.pid()) - read_before_mb
    cold = _count_cold_reads(cluster.nodes) - cold
    print(f"consumed {consumed.acknowledged_total} in {took:.1f} s: {consumed.acknowledged_total / took:,.0f}/s")
    print(f"pulls that waited for the disk: {cold:.0f}, {read_mb:.0f} MB read from it, errors: {consumed.errors}")
    _show_sends(alone, beside)
    grown_mb = memory.show_growth(before)
    return Measured(messages, stored_mb, read_mb, consumed, alone, beside, grown_mb)


def _show_sends(alone: Sequence[LoadResult], beside: Sequence[LoadResult]) -> None:
    for name, runs in (("alone", alone), ("beside the consumer", beside)):
        rate = _rate(runs)
        p99 = median(run.p99_us for run in runs) / 1000
        print(f"sends {name}: {rate:,.0f}/s, p99 {p99:.1f} ms, {len(runs)} runs, errors {[r.errors for r in runs]}")
    print(f"sends lost {1 - _rate(beside) / _rate(alone):.0%} of their rate to the consumer")


def what_is_wrong(measured: Measured) -> list[str]:
    """Return faults that must not occur on any machine: errors, missing messages, a backlog in memory, growing
    memory.
    """
    consumed = measured.consumed
    wrong = [f"errors: {run.errors}" for run in (consumed, *measured.alone, *measured.beside) if run.errors]
    if consumed.acknowledged_total < measured.messages:  # a last pull may bring more than is left
        wrong.append(f"{consumed.acknowledged_total} messages were consumed, {measured.messages} were stored")
    if measured.read_mb < measured.stored_mb * FROM_DISK:
        share = f"{measured.read_mb:.0f} MB of a backlog of {measured.stored_mb:.0f} MB"
        wrong.append(f"only {share} came from disk: is --work-dir on one?")
    wrong += [f"{node} took {mb:.0f} MB more meanwhile" for node, mb in measured.grown_mb.items() if mb > GROWTH_MB]
    return wrong


def what_is_slow(measured: Measured) -> list[str]:
    """Return faults that must not occur on an otherwise idle machine.

    Such a fault is a loss of more than `SLOWER` by sends beside the consumer of a backlog of `JUDGED_MESSAGES` or more.
    """
    alone, beside = _rate(measured.alone), _rate(measured.beside)
    if measured.messages < JUDGED_MESSAGES or beside >= alone * (1 - SLOWER):
        return []
    lost = 1 - beside / alone
    return [f"sends were {lost:.0%} slower beside the consumer, {beside:,.0f}/s instead of {alone:,.0f}/s"]


def _rate(runs: Sequence[LoadResult]) -> float:
    return median(run.messages_per_s for run in runs)


def forget_page_cache(directory: Path) -> int:
    """Make the kernel drop its page cache of the files below a directory. Returns the size of the files."""
    size = 0
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size += os.fstat(descriptor).st_blocks * 512
            os.fdatasync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return size


class _Memory:
    """Samples the nodes' memory while a block runs, or until it is stopped."""

    def __init__(self, nodes: Sequence[BenchNode]) -> None:
        self._pids = {node.node_id: node.pid() for node in nodes}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.seen: dict[str, list[float]] = {node_id: [] for node_id in self._pids}
        self.stopped_at = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Stop sampling."""
        if not self._end.is_set():
            self.stopped_at = time.monotonic()
            self._end.set()

    def show_growth(self, before_mb: Mapping[str, float]) -> dict[str, float]:
        """Print each node's memory. Returns the maximum growth of each node in MB."""
        for node_id, seen in self.seen.items():
            print(f"{node_id}: {before_mb[node_id]:.0f} MB before, {min(seen):.0f} to {max(seen):.0f} MB meanwhile")
        return {node_id: max(seen) - before_mb[node_id] for node_id, seen in self.seen.items()}

    def _sample(self) -> None:
        while True:
            for node_id, pid in self._pids.items():
                self.seen[node_id].append(anonymous_rss_mb(pid))
            if self._end.wait(SAMPLE_S):
                return


def _count_cold_reads(nodes: Sequence[BenchNode]) -> float:
    """Return how often pulls have waited for the disk, at all nodes together."""
    cold_reads = 0.0
    for node in nodes:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.client_port + 2}/metrics", timeout=5.0) as answer:
            lines = answer.read().decode().splitlines()
        cold_reads += sum(
            float(line.split()[-1]) for line in lines if line.startswith("dledger_broker_cold_reads_total")
        )
    return cold_reads


if __name__ == "__main__":
    main()
