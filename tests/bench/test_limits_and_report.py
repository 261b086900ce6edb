"""Limits are measured without leaving traces, and the report states the requested parameters truthfully."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.compiler import build_generator
from bench.generator import LoadResult
from bench.limits import (
    MachineLimits,
    fdatasync_us,
    loopback_round_trip_us,
    may_give_memory_back,
    memory_copy_gb_per_s,
)  # fmt: skip
from bench.report import beside_the_limit, show
from bench.results import FailoverReport, IdleRun, LoadReport, LoadRun, NodeUsage, Report, quantile
from bench.scenarios import LOADS, NAMES
from bench.usage import UsageMeter

LIMITS = MachineLimits(
    fdatasync_64k_us=100.0, fdatasync_64k_per_s=10_000.0, loopback_round_trip_us=50.0, memory_copy_gb_per_s=2.0,
    may_give_memory_back=False,
)  # fmt: skip


def load_result(messages_per_s: float, errors: dict[str, int] | None = None) -> LoadResult:
    return LoadResult(
        seconds=4.0, requests=100, messages=100, messages_per_s=messages_per_s, acknowledged_total=100,
        received_mb_per_s=1.0, sent_mb_per_s=100.0, p50_us=1000.0, p99_us=2000.0, p999_us=3000.0, max_us=4000.0,
        generator_cpu_s=0.1, errors=errors or {},
    )  # fmt: skip


def load_report(flush: str, *rates: float, errors: dict[str, int] | None = None) -> LoadReport:
    node = NodeUsage(role="leader", cpu_us_per_message=5.0, cpu_share=0.5, rss_anon_mb=90.0)
    runs = [LoadRun(start_s=1.5, load=load_result(rate, errors), nodes=[node, node, node]) for rate in rates]
    return LoadReport(flush=flush, target_messages_per_s=35_000, target_p99_ms=8.0, runs=runs)


def shown(report: Report) -> str:
    console = Console(width=220, record=True, file=io.StringIO())
    show(report, console)
    return console.export_text()


def test_limits_are_positive_and_that_of_the_disk_leaves_no_file(tmp_path: Path) -> None:
    assert fdatasync_us(tmp_path / "probe", seconds=0.02) > 0
    assert list(tmp_path.iterdir()) == []
    assert loopback_round_trip_us(seconds=0.02) > 0
    assert memory_copy_gb_per_s(seconds=0.1) > 0


def test_free_page_reporting_is_told_from_other_balloons(tmp_path: Path) -> None:
    assert not may_give_memory_back(tmp_path / "no balloon")
    device = tmp_path / "virtio3"
    device.mkdir()
    for features, expected in (("0110000" + "0" * 121, False), ("0110010" + "0" * 121, True)):
        (device / "features").write_text(features + "\n")
        assert may_give_memory_back(tmp_path) is expected


def test_report_says_if_memory_may_be_given_back() -> None:
    for given in (True, False):
        limits = msgspec.structs.replace(LIMITS, may_give_memory_back=given)
        text = shown(Report(machine={}, limits=limits, loads={}, idle=[], failover=None))
        assert ("free memory may go back" in text) is given


def test_meter_sees_memory_and_cpu_of_each_process_leader_first() -> None:
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        meter = UsageMeter([os.getpid(), child.pid])
        meter.begin()
        began = time.thread_time()
        while time.thread_time() - began < 0.05:  # the kernel books processor time in ticks of up to 10 ms
            sum(range(10_000))
        meter.end()
        leader, follower = meter.nodes(messages=10)
        child.communicate(b"\n")
    assert (leader.role, follower.role) == ("leader", "follower")
    assert leader.cpu_us_per_message > 0
    assert leader.rss_anon_mb > follower.rss_anon_mb > 0


@pytest.mark.parametrize(
    ("q", "expected"), [(0.0, 1), (0.5, 10), (0.95, 19), (0.99, 20), (1.0, 20)], ids=["min", "p50", "p95", "p99", "max"]
)
def test_a_quantile_is_one_of_the_samples(q: float, expected: int) -> None:
    assert quantile(range(20, 0, -1), q) == expected


def test_load_figures_are_medians_and_are_compared_with_the_disk_if_synced_and_with_memory_otherwise() -> None:
    assert load_report("sync", 10_000, 50_000, 40_000).messages_per_s == 40_000
    assert beside_the_limit(load_report("sync", 40_000), LIMITS) == "4.0 messages per fdatasync"
    assert beside_the_limit(load_report("async", 40_000), LIMITS) == "100 MB/s, 5.0% of memory copy"


def test_report_shows_figures_targets_errors_and_crowds_of_consumers() -> None:
    report = Report(
        machine={},
        limits=LIMITS,
        loads={"sync-1x64": load_report("sync", 40_000, errors={"14": 7})},
        idle=[IdleRun(start_s=2.5, seconds=4.0, nodes=load_report("sync", 1).runs[0].nodes)],
        failover=FailoverReport(gaps_ms=[900.0, 1100.0, 3200.0], failed_sends=0),
    )
    text = shown(report)
    synced = ("40,000", "35,000", "4.0 messages per fdatasync", " 7 ")
    assert [words for words in (*synced, "1,100 ms", "3,200 ms", "90 MB", "1.50 s") if words not in text] == []
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    report.crowds = {"long-polls": load_report("sync", 10_000, 9_000, 8_000).runs}
    text = shown(report)
    assert "long-polls" in text
    assert "9,000" in text


def test_every_load_has_a_name_and_a_target() -> None:
    assert set(LOADS) < set(NAMES)
    assert all(scenario.target_messages_per_s > 0 for scenario in LOADS.values())


def test_generator_is_compiled_once(tmp_path: Path) -> None:
    program = build_generator(tmp_path)
    built_at = program.stat().st_mtime_ns
    assert build_generator(tmp_path).stat().st_mtime_ns == built_at


@pytest.mark.parametrize("name", ["gen.c", "tail.c"])
def test_generator_compiles_without_a_warning(tmp_path: Path, name: str) -> None:
    source = Path(__file__).parents[2] / "bench" / name
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(tmp_path / "gen"), str(source)], check=True)
