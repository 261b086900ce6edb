"""Turns of a comparison: the rows of one service are measured on fresh nodes, then those of the next service."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cluster import Flush
from bench.generator import GeneratorError
from bench.peers.results import Comparison, Figures, Skipped
from bench.peers.rows import ROWS
from bench.peers.service import CannotRunError, Edges, RunningService, Service, Timing
from bench.usage import UsageMeter

FLUSHES: Final[tuple[Flush, ...]] = ("sync", "async")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a comparison: rows, number of runs and times. `work_dir` is on the disk that is measured."""

    rows: Sequence[str]
    runs: int
    timing: Timing
    work_dir: Path


def fetch_all(services: Sequence[Service], comparison: Comparison, say: Callable[[str], None]) -> list[Service]:
    """Return the services that this machine can run. The others are skipped with their reason."""
    usable = []
    for service in services:
        say(f"{service.name}: fetching")
        try:
            service.fetch()
        except CannotRunError as error:
            comparison.skipped.append(Skipped(service=service.name, reason=str(error)))
        else:
            usable.append(service)
    return usable


def measure(
    services: Sequence[Service],
    settings: Settings,
    comparison: Comparison,
    say: Callable[[str], None],
    keep: Callable[[Comparison], None],
) -> None:
    """Measure all rows on all services, `settings.runs` times in turns, and add the figures to `comparison`.

    Every other run has the services in reverse order. A row that fails is skipped from then on, and the rest continues.
    After each turn `keep` gets the figures so far, so that an interrupted run keeps them.
    """
    for number in range(settings.runs):
        for flush in FLUSHES:
            for service in list(services)[:: 1 if number % 2 == 0 else -1]:
                rows = [name for name in settings.rows if ROWS[name].flush == flush]
                rows = [name for name in rows if not _is_skipped(comparison, service.name, name)]
                if rows:
                    say(f"run {number + 1} of {settings.runs}: {service.name}, {flush}")
                    _measure_turn(service, flush, rows, settings, comparison)
                    keep(comparison)


def _measure_turn(
    service: Service, flush: Flush, rows: Sequence[str], settings: Settings, comparison: Comparison
) -> None:
    directory = settings.work_dir / "nodes"
    directory.mkdir()
    try:
        with service.running(flush, directory) as running:
            for name in rows:
                try:
                    _measure_row(service.name, name, running, settings.timing, comparison)
                except (CannotRunError, GeneratorError) as error:
                    _skip(comparison, service.name, name, error)
    except (CannotRunError, GeneratorError) as error:
        for name in rows:
            _skip(comparison, service.name, name, error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure_row(service: str, name: str, running: RunningService, timing: Timing, comparison: Comparison) -> None:
    row = ROWS[name]
    if row.mode == "pull":
        running.fill(timing.backlog)
    meter = UsageMeter(running.pids)
    result = running.measure(row, timing, Edges(meter.begin, meter.end))
    nodes = meter.nodes(result.messages)
    figures = comparison.of(name, service)
    if figures is None:
        figures = Figures(row=name, service=service)
        comparison.figures.append(figures)
    figures.messages_per_s.append(round(result.messages_per_s, 1))
    if row.mode != "pull":  # a consumer's waiting time depends on how much its library asks for in advance
        figures.p50_ms.append(round(result.p50_us / 1000, 3))
        figures.p99_ms.append(round(result.p99_us / 1000, 3))
    figures.cpu_us_per_message.append(round(sum(node.cpu_us_per_message for node in nodes), 2))
    figures.generator_us_per_message.append(round(result.generator_cpu_s * 1e6 / result.messages, 2))
    figures.memory_mb.append(round(sum(node.rss_anon_mb for node in nodes), 1))
    figures.errors += sum(result.errors.values())


def _skip(comparison: Comparison, service: str, row: str, error: Exception) -> None:
    if not _is_skipped(comparison, service, row):
        comparison.skipped.append(Skipped(service=service, row=row, reason=str(error)))


def _is_skipped(comparison: Comparison, service: str, row: str) -> bool:
    return any(each.service == service and each.row in {"", row} for each in comparison.skipped)
