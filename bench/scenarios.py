"""Scenarios of the benchmark.

Every run of a load starts a cluster of its own, so that no run inherits the files or memory of another. Kills,
restarts and turns with few and many queues share the cluster of their scenario.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from bench.cluster import BenchCluster, Flush, running_cluster
from bench.compiler import TAIL_SOURCE, build_generator
from bench.failover import measure_failover
from bench.generator import GeneratorError, Load, LoadResult, run_load
from bench.results import FailoverReport, IdleRun, LoadReport, LoadRun, QueuesReport, RestartReport
from bench.tailing import Tail, run_tail
from bench.usage import UsageMeter

TOPIC = "bench"
BACKLOG_MESSAGES = 500_000
_FILL = Load(connections=4, window=8, batch=32)
_FILL_LIMIT_S = 120.0
_FIRST_SEND_LIMIT_S = 15.0
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class LoadScenario:
    """A load on one flush mode, and its targets on two cores that it shares with all three nodes."""

    flush: Flush
    load: Load
    target_messages_per_s: int
    target_p99_ms: float = 0.0


LOADS = {
    "sync-1x64": LoadScenario("sync", Load(connections=1, window=64), 35_000, 8.0),
    "sync-64x1": LoadScenario("sync", Load(connections=64, window=1), 30_000),
    "sync-batch": LoadScenario("sync", Load(connections=1, window=64, batch=32), 150_000),
    "async-1x64": LoadScenario("async", Load(connections=1, window=64), 60_000, 4.0),
    "async-64x1": LoadScenario("async", Load(connections=64, window=1), 40_000),
    "async-batch": LoadScenario("async", Load(connections=1, window=64, batch=32), 250_000),
    "consume": LoadScenario("async", Load(mode="pull", messages_per_pull=32), 400_000),
}
IDLE, FAILOVER, RESTART, QUEUES = "idle", "failover", "restart", "queues"
CONSUMERS, LONG_POLLS = "consume-64", "long-polls"
CROWDS = (CONSUMERS, LONG_POLLS)
NAMES = (*LOADS, IDLE, FAILOVER, RESTART, QUEUES, *CROWDS)

RESTART_LOG_BYTES = 4 << 30
FEW_QUEUES, MANY_QUEUES = 8, 10_000
_SPREAD = Load(connections=100, window=100, spread=True)
_CONSUMERS = 64
_CROWD_FILL = Load(connections=_CONSUMERS, window=1, batch=32, queues=_CONSUMERS)
_CROWD = Load(mode="pull", connections=_CONSUMERS, queues=_CONSUMERS)
_TAIL = Tail(rate_per_s=40, consumers=1000)


@dataclass(frozen=True, slots=True)
class Settings:
    """Lengths and numbers of the runs. `work_dir` takes the clusters' files and must be on the disk to be measured."""

    program: Path
    work_dir: Path
    runs: int
    seconds: float
    warmup_s: float
    kills: int
    engine: str = "native"


def measure_load(scenario: LoadScenario, settings: Settings) -> LoadReport:
    """Run one load scenario `settings.runs` times."""
    runs = [_measure_load_run(scenario, settings) for _ in range(settings.runs)]
    return LoadReport(
        flush=scenario.flush,
        target_messages_per_s=scenario.target_messages_per_s,
        target_p99_ms=scenario.target_p99_ms,
        runs=runs,
    )


def measure_idle(settings: Settings) -> IdleRun:
    """Observe a cluster without load, once it has settled."""
    with _fresh_cluster(settings, "sync") as (cluster, start_s):
        time.sleep(_SETTLE_S)
        meter = UsageMeter(_list_pids_leader_first(cluster))
        meter.begin()
        time.sleep(settings.seconds)
        meter.end()
        return IdleRun(start_s=start_s, seconds=settings.seconds, nodes=meter.nodes(messages=0))


def measure_failovers(settings: Settings) -> FailoverReport:
    """Kill the leader `settings.kills` times while a client sends."""
    with _fresh_cluster(settings, "sync") as (cluster, _):
        cluster.await_equal()
        return asyncio.run(measure_failover(cluster, TOPIC, settings.kills))


def measure_restarts(settings: Settings) -> RestartReport:
    """Kill a whole group with a long log and start it again, `settings.runs` times."""
    with _fresh_cluster(settings, "sync") as (cluster, _):
        port = cluster.leader().client_port
        while cluster.log_bytes() < RESTART_LOG_BYTES:
            run_load(settings.program, _FILL, port=port, topic=TOPIC, seconds=_FILL_LIMIT_S, messages=BACKLOG_MESSAGES)
        cluster.await_equal()
        log_bytes = cluster.log_bytes()
        seconds: list[float] = []
        for _ in range(settings.runs):
            for node in cluster.nodes:
                cluster.kill(node)
            started_at = time.monotonic()
            cluster.restart(*cluster.nodes)
            _await_acknowledged_send(cluster, settings.program)
            seconds.append(round(time.monotonic() - started_at, 3))
            cluster.await_equal()
        return RestartReport(log_bytes=log_bytes, seconds=seconds)


def measure_crowd(name: str, settings: Settings) -> list[LoadRun]:
    """Run many consumers at a time, `settings.runs` times: 64 that read a backlog, a queue each, or 1,000 that wait.

    Each waiting consumer has a long poll, 250 on every queue, so each of 40 messages a second is received 250 times.
    Such a run counts receipts as messages. Its latencies are the times from when messages were due to their receipts.
    """
    return [(_measure_readers if name == CONSUMERS else _measure_waiters)(settings) for _ in range(settings.runs)]


def _measure_readers(settings: Settings) -> LoadRun:
    with _fresh_cluster(settings, "async") as (cluster, start_s):
        topic = f"{TOPIC}-{_CONSUMERS}"
        cluster.create_topic(topic, _CONSUMERS)
        run = partial(run_load, settings.program, port=cluster.leader().client_port, topic=topic)
        run(_CROWD_FILL, seconds=_FILL_LIMIT_S, messages=BACKLOG_MESSAGES)
        cluster.await_equal()
        return _run_measured(cluster, start_s, partial(run, _CROWD), settings)


def _measure_waiters(settings: Settings) -> LoadRun:
    program = build_generator(source=TAIL_SOURCE)
    with _fresh_cluster(settings, "sync") as (cluster, start_s):
        run = partial(run_tail, program, _TAIL, port=cluster.leader().client_port, topic=TOPIC)
        return _run_measured(cluster, start_s, run, settings)


def measure_queues(settings: Settings) -> QueuesReport:
    """Send in turns to a topic with few queues and to one with many, once all queues have messages and files."""
    rates: dict[int, list[float]] = {FEW_QUEUES: [], MANY_QUEUES: []}
    with _fresh_cluster(settings, "sync") as (cluster, _):

        def send(queues: int) -> float:
            return run_load(
                settings.program,
                replace(_SPREAD, queues=queues),
                port=cluster.leader().client_port,
                topic=f"{TOPIC}-{queues}",
                seconds=settings.seconds,
                warmup_s=settings.warmup_s,
            ).messages_per_s

        for queues in rates:
            cluster.create_topic(f"{TOPIC}-{queues}", queues)
            send(queues)
            cluster.await_queue_files(f"{TOPIC}-{queues}", queues)
        for turn in range(settings.runs):
            for queues in list(rates)[:: 1 if turn % 2 else -1]:
                rates[queues].append(send(queues))
    return QueuesReport(
        few_queues=FEW_QUEUES,
        many_queues=MANY_QUEUES,
        few_per_s=rates[FEW_QUEUES],
        many_per_s=rates[MANY_QUEUES],
    )


def _measure_load_run(scenario: LoadScenario, settings: Settings) -> LoadRun:
    with _fresh_cluster(settings, scenario.flush) as (cluster, start_s):
        port = cluster.leader().client_port
        run = partial(run_load, settings.program, port=port, topic=TOPIC)
        if scenario.load.mode == "pull":
            run(_FILL, seconds=_FILL_LIMIT_S, messages=BACKLOG_MESSAGES)
            cluster.await_equal()
        return _run_measured(cluster, start_s, partial(run, scenario.load), settings)


def _run_measured(cluster: BenchCluster, start_s: float, run: Callable[..., LoadResult], settings: Settings) -> LoadRun:
    """Put a load on a cluster, and measure what its nodes use meanwhile."""
    meter = UsageMeter(_list_pids_leader_first(cluster))
    result = run(seconds=settings.seconds, warmup_s=settings.warmup_s, on_start=meter.begin, on_end=meter.end)
    return LoadRun(start_s=start_s, load=result, nodes=meter.nodes(result.messages))


@contextmanager
def _fresh_cluster(settings: Settings, flush: Flush) -> Iterator[tuple[BenchCluster, float]]:
    """Start a cluster. Yields it with the seconds from its first process to its first acknowledged send."""
    data_dir = settings.work_dir / "cluster"
    try:
        with running_cluster(data_dir, flush, settings.engine) as cluster:
            _await_acknowledged_send(cluster, settings.program)
            yield cluster, round(time.monotonic() - cluster.started_at, 3)
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


def _await_acknowledged_send(cluster: BenchCluster, program: Path) -> None:
    """Send until one message is acknowledged; this also creates the topic, as a client's first send does."""
    deadline = time.monotonic() + _FIRST_SEND_LIMIT_S
    while True:
        port = cluster.leader().client_port
        try:
            run_load(program, Load(window=1), port=port, topic=TOPIC, seconds=1.0, messages=1)
        except GeneratorError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _list_pids_leader_first(cluster: BenchCluster) -> list[int]:
    leader = cluster.leader()
    return [leader.pid(), *(node.pid() for node in cluster.nodes if node != leader)]
