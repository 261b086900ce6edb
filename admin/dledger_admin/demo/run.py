"""Conducts the demonstration: cluster up, traffic through it, cluster down, everything compared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import Progress

from dledger.store.verify import compare, verify
from dledger_base.room import look_for_room
from dledger_client import ClientError
from dledger_client.testing.ports import NAMESRV_OFFSET, find_base_port

from ..cluster.lifecycle import ClusterSetup, RunningCluster, UpOptions, services, up_lock
from ..cluster.probes import fetch_all, refusals
from ..errors import AdminError
from ..output import say
from ..signals import noted_signals
from .bars import Bars
from .corpus import SourceFile
from .rebuilding import Rebuilder
from .report import DemoReport
from .shipping import longest_pause_ms
from .traffic import Outcome, run_traffic

_CONFIG = "segment_bytes = 67_108_864\n"
_NODES = 3
_LOG_BYTES_PER_SHIPPED_BYTE = 8
"""Bytes of log, queues and indexes for each byte that is shipped: a line is short beside what a message carries."""
_RESERVED_BYTES = 80 << 20
"""Space that a node reserves ahead of its log."""


def run_demo(files: list[SourceFile], work_dir: Path, progress: Progress) -> DemoReport:
    """Run the whole demonstration below `work_dir`, which the caller removes; its processes are stopped in any case.

    Raises `AdminError` when the cluster does not start, a send fails for good, or messages stop coming.
    """
    require_room(files, work_dir)
    began_at = time.monotonic()
    with _running_cluster(work_dir) as (cluster, started_at):
        try:
            outcome = _run_on_loop(cluster, files, work_dir / "rebuilt", progress)
        except AdminError as error:
            texts = (error.message, *_find_troubles(cluster), "with --keep the logs stay")
            raise AdminError("; ".join(texts)) from error
    different = _find_different_files(files, outcome.rebuilder)
    reports = [verify(str(place.directory)) for place in cluster.layout.places()]
    comparison = compare(reports)
    return DemoReport(
        files=len(files),
        files_identical=len(files) - len(different),
        files_different=different,
        startup_seconds=outcome.first_acknowledged_at - started_at,
        total_seconds=time.monotonic() - began_at,
        messages_sent=outcome.shipper.messages,
        megabytes_sent=outcome.shipper.sent_bytes / 1e6,
        messages_received=outcome.rebuilder.messages,
        megabytes_received=outcome.rebuilder.received_bytes / 1e6,
        messages_per_second=outcome.shipper.messages / (outcome.ended_at - outcome.began_at),
        failover_gap_ms=longest_pause_ms(outcome.shipper.acknowledged_at, outcome.killed.at),
        killed_node=outcome.killed.node_id,
        new_leader=outcome.new_leader.node_id,
        new_term=outcome.new_leader.term,
        duplicates=outcome.rebuilder.duplicates,
        out_of_order=outcome.rebuilder.out_of_order,
        replicas=len(reports),
        replicas_identical=comparison.first_difference < 0,
        compared_bytes=comparison.end_position - comparison.first_position,
        log_problems=comparison.problems,
    )


def require_room(files: list[SourceFile], work_dir: Path) -> None:
    """Say on standard error if the disk is above the watermark. Raises `AdminError` if the files do not fit."""
    size = sum(file.size_bytes for file in files)
    needed = _NODES * (_LOG_BYTES_PER_SHIPPED_BYTE * size + _RESERVED_BYTES) + size
    room = look_for_room(work_dir, needed, "the demonstration")
    if room.lack is not None:
        raise AdminError(f"{room.lack}; TMPDIR names the directory")
    if room.warning is not None:
        say(f"warning: {room.warning}")


@contextmanager
def _running_cluster(work_dir: Path) -> Iterator[tuple[RunningCluster, float]]:
    """Run one name server and one group of three on free ports; yields it and the monotonic time of its start."""
    data_dir = work_dir / "cluster"
    config = work_dir / "demo.toml"
    config.write_text(_CONFIG, encoding="utf-8")
    try:
        base_port = find_base_port(1, _NODES)
    except OSError as error:
        raise AdminError(str(error)) from error
    setup = ClusterSetup.prepare(UpOptions(data_dir, 1, _NODES, base_port + NAMESRV_OFFSET, base_port, config))
    started_at = time.monotonic()
    with up_lock(data_dir):
        with noted_signals() as check:
            cluster = setup.start()
        try:
            check()
            cluster.await_leaders()
            yield cluster, started_at
        finally:
            cluster.stop()


def _run_on_loop(cluster: RunningCluster, files: list[SourceFile], target: Path, progress: Progress) -> Outcome:
    """Run the traffic on the event loop that brokers use; raises `AdminError` with the first thing that went wrong."""

    async def work() -> Outcome:
        bars = Bars(progress, sum(file.size_bytes for file in files), len(files))
        return await run_traffic(cluster, files, target, bars)

    with asyncio.Runner(loop_factory=_choose_loop_factory()) as runner:
        try:
            return runner.run(work())
        except (ClientError, ExceptionGroup) as error:
            raise AdminError(str(_first_error(error))) from error


def _find_troubles(cluster: RunningCluster) -> list[str]:
    """Return what the processes of the cluster suffer from: why something failed, while their logs are still there."""
    troubles = [
        f"{name} ended with exit code {code}: {services(cluster.layout)[name].last_words()}"
        for name, code in cluster.exited().items()
    ]
    return troubles + list(refusals(fetch_all(cluster.layout.places())))


def _first_error(error: Exception) -> Exception:
    """Return the first error in a group of them, however deep."""
    return _first_error(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _choose_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's where it is installed, else the default."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _find_different_files(files: list[SourceFile], rebuilder: Rebuilder) -> list[str]:
    """Return the names of files whose rebuilt SHA-256 is not that of the file on disk."""
    return [file.key for file in files if rebuilder.digests.get(file.key) != file.sha256()]
