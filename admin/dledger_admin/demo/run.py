"""Conducts the demonstration: cluster up, files through it, the leader killed and brought back, everything compared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dledger.store.verify import compare, verify
from dledger_client import Admin, Producer, PushConsumer

from ..cluster.layout import ClusterLayout
from ..cluster.lifecycle import ClusterSetup, RunningCluster, UpOptions, up_lock
from ..cluster.ports import find_free_block
from ..errors import AdminError
from .corpus import SourceFile
from .failover import Failover, await_equal, kill_leader, restart
from .rebuilding import Rebuilder
from .report import DemoReport
from .shipping import CLOSING_TAG, NUMBER_PROPERTY, Shipper, longest_pause_ms

TOPIC = "source-lines"
CONSUMER_GROUP = "rebuilders"
QUEUES = 16
CONSUMERS = 2

KILL_AT_SHARE = 0.4
"""The leader is killed once this share of the bytes is acknowledged."""

RESTART_AT_SHARE = 0.7
STALL_TIMEOUT_S = 45.0
"""Without any message received for so long, the demonstration has failed."""

_CONFIG = "segment_bytes = 67_108_864\n"
_GROUP = "broker-a"
_NAMESRV_OFFSET = 90
_PULL_BATCH = 256
_MAX_OUTSTANDING = 4096


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the run left in memory."""

    shipper: Shipper
    rebuilder: Rebuilder
    failover: Failover
    started_at: float
    first_acknowledged_at: float
    shipping_began_at: float
    finished_at: float


def run_demo(files: list[SourceFile], work_dir: Path, progress: Progress) -> DemoReport:
    """Run the whole demonstration below `work_dir`, which the caller removes; its processes are stopped in any case.

    Raises `AdminError` when the cluster does not start, or when messages stop coming.
    """
    began_at = time.monotonic()
    with _cluster(work_dir) as (cluster, started_at):
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            outcome = runner.run(_through_the_cluster(cluster, files, work_dir / "rebuilt", progress, started_at))
    different = _different_files(files, outcome.rebuilder)
    reports = [verify(str(place.directory)) for place in cluster.layout.places()]
    comparison = compare(reports)
    seconds = outcome.finished_at - outcome.shipping_began_at
    return DemoReport(
        files=len(files),
        files_identical=len(files) - len(different),
        files_different=different,
        startup_seconds=outcome.first_acknowledged_at - outcome.started_at,
        total_seconds=time.monotonic() - began_at,
        messages_sent=outcome.shipper.messages,
        megabytes_sent=outcome.shipper.sent_bytes / 1e6,
        messages_received=outcome.rebuilder.messages,
        megabytes_received=outcome.rebuilder.received_bytes / 1e6,
        messages_per_second=outcome.shipper.messages / seconds,
        failover_gap_ms=longest_pause_ms(outcome.shipper.acknowledged_at, outcome.failover.killed_at),
        killed_node=outcome.failover.killed,
        new_leader=outcome.failover.new_leader,
        new_term=outcome.failover.new_term,
        duplicates=outcome.rebuilder.duplicates,
        out_of_order=outcome.rebuilder.out_of_order,
        replicas=len(reports),
        replicas_identical=comparison.first_difference < 0,
        compared_bytes=comparison.end_position - comparison.first_position,
        log_problems=comparison.problems,
    )


def progress_display() -> Progress:
    """Return the progress bars that `run_demo` draws into."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        refresh_per_second=5,
    )


@contextmanager
def _cluster(work_dir: Path) -> Iterator[tuple[RunningCluster, float]]:
    """Run one name server and one group of three on free ports; yields it and the time of its start."""
    data_dir = work_dir / "cluster"
    config = work_dir / "demo.toml"
    config.write_text(_CONFIG, encoding="utf-8")
    probe = ClusterLayout(data_dir, base_port=1)
    offsets = [port - 1 for port, _ in probe.ports()[1:]]
    base_port = find_free_block([*offsets, _NAMESRV_OFFSET])
    setup = ClusterSetup.prepare(UpOptions(data_dir, 1, 3, base_port + _NAMESRV_OFFSET, base_port, config))
    started_at = time.monotonic()
    with up_lock(data_dir):
        cluster = setup.start()
        try:
            cluster.await_leaders()
            yield cluster, started_at
        finally:
            cluster.stop()


async def _through_the_cluster(
    cluster: RunningCluster, files: list[SourceFile], target: Path, progress: Progress, started_at: float
) -> _Outcome:
    """Ship and rebuild at the same time; the cluster is whole again when this returns."""
    total = max(1, sum(file.size_bytes for file in files))
    sent = progress.add_task("sent    ", total=total, note="")
    received = progress.add_task("received", total=total, note="")
    shares = {share: asyncio.Event() for share in (KILL_AT_SHARE, RESTART_AT_SHARE)}
    complete = asyncio.Event()

    def on_acknowledged(_: int, size: int) -> None:
        progress.update(sent, advance=size, note=f"{shipper.messages:,} messages")
        for share, reached in shares.items():
            if shipper.sent_bytes >= share * total:
                reached.set()

    def on_complete(_: str) -> None:
        note = f"{len(rebuilder.digests):,} of {len(files):,} files"
        progress.update(received, completed=rebuilder.received_bytes, note=note)
        if len(rebuilder.digests) == len(files):
            complete.set()

    async def ship() -> None:
        await shipper.ship(files, parallel=2 * QUEUES)
        for reached in shares.values():
            reached.set()

    rebuilder = Rebuilder(target, on_complete)
    async with _consumers(cluster, rebuilder), Producer(cluster.layout.namesrv_address) as producer:
        shipper = Shipper(producer, TOPIC, on_acknowledged)
        await producer.send(TOPIC + "-start", b"the cluster is up")
        first_acknowledged_at = time.monotonic()
        async with Admin(cluster.layout.namesrv_address) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        shipping_began_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            shipping = group.create_task(ship())
            failover = await _fail_over(cluster, shares, progress)
            await shipping
            await _until_complete(complete, rebuilder)
        finished_at = time.monotonic()
    await await_equal(cluster, _GROUP)
    return _Outcome(shipper, rebuilder, failover, started_at, first_acknowledged_at, shipping_began_at, finished_at)


async def _fail_over(cluster: RunningCluster, shares: dict[float, asyncio.Event], progress: Progress) -> Failover:
    await shares[KILL_AT_SHARE].wait()
    failover = await kill_leader(cluster, _GROUP)
    progress.console.print(
        f"killed the leader {failover.killed} (SIGKILL), {failover.new_leader} leads in term {failover.new_term}"
    )
    await shares[RESTART_AT_SHARE].wait()
    restart(cluster, failover.killed)
    progress.console.print(f"started {failover.killed} again")
    return failover


async def _until_complete(complete: asyncio.Event, rebuilder: Rebuilder) -> None:
    """Wait for the last file; raises `AdminError` when nothing arrives any more."""
    while not complete.is_set():
        before = rebuilder.messages
        try:
            await asyncio.wait_for(complete.wait(), STALL_TIMEOUT_S)
        except TimeoutError:
            if rebuilder.messages == before:
                raise AdminError(
                    f"{len(rebuilder.digests)} files are complete and nothing arrived for {STALL_TIMEOUT_S:.0f} s"
                ) from None


@asynccontextmanager
async def _consumers(cluster: RunningCluster, rebuilder: Rebuilder) -> AsyncIterator[None]:
    """Run two consumers of one group that both feed the rebuilder."""

    async def consume() -> None:
        async with PushConsumer(
            cluster.layout.namesrv_address,
            CONSUMER_GROUP,
            TOPIC,
            pull_batch_size=_PULL_BATCH,
            max_outstanding=_MAX_OUTSTANDING,
        ) as consumer:
            async for message in consumer:
                key, number = message.key or "", int(message.properties[NUMBER_PROPERTY])
                if message.tags == CLOSING_TAG:
                    rebuilder.closing(key, number)
                else:
                    rebuilder.line(key, number, message.body)

    tasks = [asyncio.create_task(consume(), name=f"consumer {number}") for number in range(CONSUMERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's where it is installed: the same event loop that brokers run on."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _different_files(files: list[SourceFile], rebuilder: Rebuilder) -> list[str]:
    """Return the names of files whose rebuilt SHA-256 is not that of the file on disk."""
    return [file.key for file in files if rebuilder.digests.get(file.key) != file.sha256()]
