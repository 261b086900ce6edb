"""Tables of a `Report`, with each figure beside its target and beside the machine's own limit."""

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.limits import MachineLimits
from bench.results import LoadReport, LoadRun, Report, quantile

START_TARGET_S = 3.0
IDLE_RSS_TARGET_MB, LOADED_RSS_TARGET_MB = 120, 300
IDLE_CPU_TARGET = 0.01
RESTART_TARGET_S = 5.0
QUEUES_TARGET = 0.15
MEMORY_MAY_GO_BACK = (
    "free memory may go back to its host: rates may be of memory that is used for the first time, see bench/README.md"
)
GAP_P50_TARGET_MS, GAP_P99_TARGET_MS = 1200, 3000


def show(report: Report, console: Console) -> None:
    """Print the limits of the machine, and every other table for which there are figures."""
    console.print(_limits_table(report.limits))
    if report.loads:
        console.print(_loads_table(report))
    if report.crowds:
        console.print(_crowds_table(report.crowds))
    if rest := _other_table(report):
        console.print(rest)


def _limits_table(limits: MachineLimits) -> Table:
    table = Table(title="This machine", caption=MEMORY_MAY_GO_BACK if limits.may_give_memory_back else None)
    for heading in ("append 64 KiB + fdatasync", "fdatasync/s", "loopback round trip", "memory copy"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{limits.fdatasync_64k_us:,.0f} µs",
        f"{limits.fdatasync_64k_per_s:,.0f}",
        f"{limits.loopback_round_trip_us:,.0f} µs",
        f"{limits.memory_copy_gb_per_s:,.1f} GB/s",
    )
    return table


def _loads_table(report: Report) -> Table:
    table = Table(
        title="Load, medians of all runs",
        caption="in parentheses what was asked for; CPU is µs per message, leader / busiest follower",
    )
    table.add_column("scenario", no_wrap=True)
    for heading in ("messages/s", "p50 ms", "p99 ms", "CPU", "RssAnon MB", "errors", "beside the limit"):
        table.add_column(heading, justify="right")
    for name, load in report.loads.items():
        is_fast = load.messages_per_s >= load.target_messages_per_s
        is_prompt = not load.target_p99_ms or load.p99_ms <= load.target_p99_ms
        table.add_row(
            name,
            f"{verdict(f'{load.messages_per_s:,.0f}', good=is_fast)} ({load.target_messages_per_s:,})",
            f"{load.p50_ms:.2f}",
            verdict(f"{load.p99_ms:.2f}", good=is_prompt)
            + (f" ({load.target_p99_ms:g})" if load.target_p99_ms else ""),
            f"{load.leader_cpu_us:.1f} / {load.follower_cpu_us:.1f}",
            verdict(f"{load.rss_anon_mb:.0f}", good=load.rss_anon_mb <= LOADED_RSS_TARGET_MB),
            verdict(str(load.errors), good=load.errors == 0),
            beside_the_limit(load, report.limits),
        )
    return table


def _crowds_table(crowds: Mapping[str, Sequence[LoadRun]]) -> Table:
    table = Table(title="Many consumers, medians of all runs", caption="CPU is µs per message, all nodes")
    table.add_column("scenario", no_wrap=True)
    for heading in ("received/s", "p50 ms", "p99 ms", "CPU", "RssAnon MB", "errors"):
        table.add_column(heading, justify="right")
    for name, runs in crowds.items():
        errors = sum(sum(run.load.errors.values()) for run in runs)
        table.add_row(
            name,
            f"{statistics.median(run.load.messages_per_s for run in runs):,.0f}",
            f"{statistics.median(run.load.p50_us for run in runs) / 1000:.2f}",
            f"{statistics.median(run.load.p99_us for run in runs) / 1000:.2f}",
            f"{statistics.median(sum(node.cpu_us_per_message for node in run.nodes) for run in runs):.1f}",
            f"{statistics.median(max(node.rss_anon_mb for node in run.nodes) for run in runs):.0f}",
            verdict(str(errors), good=errors == 0),
        )
    return table


def _other_table(report: Report) -> Table | None:
    table = Table(title="Around it")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("asked", justify="right")
    if starts := report.start_times_s():
        middle = quantile(starts, 0.5)
        table.add_row(
            f"start to first acknowledged send, median of {len(starts)}",
            verdict(f"{middle:.2f} s", good=middle <= START_TARGET_S),
            f"{START_TARGET_S:g} s",
        )
    if report.idle:
        rss = quantile([max(node.rss_anon_mb for node in run.nodes) for run in report.idle], 0.5)
        cpu = quantile([max(node.cpu_share for node in run.nodes) for run in report.idle], 0.5)
        table.add_row(
            "RssAnon, idle, largest node",
            verdict(f"{rss:.0f} MB", good=rss <= IDLE_RSS_TARGET_MB),
            f"{IDLE_RSS_TARGET_MB} MB",
        )
        table.add_row(
            "CPU, idle, busiest node",
            verdict(f"{cpu:.2%}", good=cpu <= IDLE_CPU_TARGET),
            f"{IDLE_CPU_TARGET:.0%} of a core",
        )
    if report.failover is not None and report.failover.gaps_ms:
        gaps = report.failover.gaps_ms
        for name, q, target in (("p50", 0.5, GAP_P50_TARGET_MS), ("p99", 0.99, GAP_P99_TARGET_MS)):
            gap = quantile(gaps, q)
            table.add_row(
                f"kill −9 of the leader to next acknowledged send, {name} of {len(gaps)}",
                verdict(f"{gap:,.0f} ms", good=gap <= target),
                f"{target:,} ms",
            )
    if report.restart is not None:
        middle = quantile(report.restart.seconds, 0.5)
        table.add_row(
            f"start of a killed group, {report.restart.log_bytes / 1e9:.1f} GB of log each, to first acknowledged "
            f"send, median of {len(report.restart.seconds)}",
            verdict(f"{middle:.2f} s", good=middle <= RESTART_TARGET_S),
            f"{RESTART_TARGET_S:g} s",
        )
    if report.queues is not None:
        slowdown = report.queues.slowdown
        table.add_row(
            f"sends to {report.queues.many_queues:,} queues instead of {report.queues.few_queues:,} are slower by, "
            f"median of {len(report.queues.few_per_s)}",
            verdict(f"{slowdown:.1%}", good=slowdown <= QUEUES_TARGET),
            f"{QUEUES_TARGET:.0%}",
        )
    return table if table.row_count else None


def beside_the_limit(load: LoadReport, limits: MachineLimits) -> str:
    """Compare a load with the limit that is nearest to it.

    With flush sync that is the disk: return the messages for each fdatasync that the disk could do. Otherwise it is the
    CPU: return the payload rate beside that of a plain memory copy.
    """
    if load.flush == "sync":
        return f"{load.messages_per_s / limits.fdatasync_64k_per_s:,.1f} messages per fdatasync"
    mb_per_s = load.median(lambda run: max(run.load.sent_mb_per_s, run.load.received_mb_per_s))
    return f"{mb_per_s:,.0f} MB/s, {mb_per_s / limits.memory_copy_gb_per_s / 1000:.1%} of memory copy"


def verdict(text: str, *, good: bool) -> str:
    """Return `text` marked up green or red."""
    return f"[green]{text}[/]" if good else f"[red]{text}[/]"
