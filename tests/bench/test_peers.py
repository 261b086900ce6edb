"""Services beside ours: one that cannot run says why, started ones are stopped, the table shows the results."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from bench.cluster import Flush
from bench.peers import fetched
from bench.peers.fetched import go_install, maven_jars, run, tool
from bench.peers.kafka import Kafka
from bench.peers.measuring import Settings, fetch_all, measure
from bench.peers.nats import VERSION, Nats
from bench.peers.processes import Processes
from bench.peers.results import Comparison, Figures, Skipped, decode, encode
from bench.peers.rocketmq import Rocketmq
from bench.peers.rows import ROWS
from bench.peers.service import CannotRunError, RunningService, Timing
from bench.peers.table import lines, markdown, terminal_table
from dledger_admin.cluster.ports import has_ended

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]
IGNORES_SIGTERM = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


def comparison(**fields: object) -> Comparison:
    return Comparison(
        date=datetime(2026, 11, 26, 20, 0, tzinfo=UTC),
        about='Quiet, "as they say".',
        command="make bench-peers",
        machine={"shared_cores": 2, "fdatasync_64k_us": 102.5, "python": "3.11.7, plain"},
        services={"ours": "one group", "NATS": "one stream"},
        **fields,  # type: ignore[arg-type]
    )


def figures(service: str, *rates: float) -> Figures:
    return Figures(
        row="sync-1x64",
        service=service,
        messages_per_s=list(rates),
        p50_ms=[1.0 for _ in rates],
        p99_ms=[9.0 for _ in rates],
        cpu_us_per_message=[30.0 for _ in rates],
        generator_us_per_message=[3.0 for _ in rates],
        memory_mb=[150.0 for _ in rates],
    )


def started(processes: Processes, command: list[str]) -> int:
    processes.start("one", command)
    processes.wait(lambda: "ready" in processes.log("one").read_text(), "ready", 30)
    return processes.pids(["one"])[0]


def test_every_run_survives_its_file(tmp_path: Path) -> None:
    kept = comparison(
        figures=[figures("ours", 3.0, 1.0, 2.0), figures("NATS", 1.5)],
        skipped=[Skipped(service="Kafka", reason='no `java` on PATH, which "runs" it\nhere')],
    )
    path = tmp_path / "run.toml"
    path.write_text(encode(kept))
    assert decode(path) == kept


def test_the_table_shows_medians_ranges_and_how_many_times_as_fast_ours_is() -> None:
    shown = comparison(figures=[figures("ours", 3000.0, 1000.0, 2000.0), figures("NATS", 1000.0, 800.0, 1600.0)])
    ours, nats = lines(shown)
    assert ours == ("sync-1x64", "ours", "2,000", "1,000 to 3,000", "", "1.0 / 9.0", "30.0", "3.0", "150")
    assert nats[2:5] == ("1,000", "800 to 1,600", "2.00")
    console = Console(width=200, file=io.StringIO())
    console.print(terminal_table(shown))
    assert "1,000 to 3,000" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "| sync-1x64 | NATS | 1,000 |" in markdown(shown)


def test_the_comparison_lists_skipped_rows_with_their_reasons() -> None:
    shown = comparison(
        figures=[figures("ours", 1.0)],
        skipped=[
            Skipped(service="NATS", row="consume", reason="it broke"),
            Skipped(service="Kafka", reason="no `java` on PATH"),
        ],
    )
    assert [cells[:3] for cells in lines(shown)][1:] == [
        ("consume", "NATS", "skipped: it broke"),
        ("all", "Kafka", "skipped: no `java` on PATH"),
    ]
    assert "it broke" in markdown(shown)


@pytest.mark.parametrize(
    ("fetch", "missing"),
    [
        (Kafka().fetch, "no `java` on PATH, which runs Kafka"),
        (Rocketmq().fetch, "no `java` on PATH, which runs RocketMQ"),
        (partial(go_install, "example.org/server/v2", "v2.0.0"), "no `go` on PATH"),
        (partial(maven_jars, "peer", [("g", "a", "1")]), "no `mvn` on PATH"),
    ],
    ids=["kafka", "rocketmq", "go", "mvn"],
)
def test_a_machine_without_the_tools_skips_the_service_and_says_which(
    fetch: Callable[[], object], missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetched, "PEERS_DIR", tmp_path / "peers")
    with pytest.raises(CannotRunError, match=missing):
        fetch()
    shown = comparison()
    assert fetch_all([Nats()], shown, lambda _: None) == []
    assert [(each.service, each.row) for each in shown.skipped] == [("NATS", "")]
    assert "go" in shown.skipped[0].reason


def test_a_failed_or_slow_step_is_reported_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="ended with 3: not today"):
        run([sys.executable, "-c", "import sys; print('not today', file=sys.stderr); sys.exit(3)"], cwd=tmp_path)
    with pytest.raises(CannotRunError, match=r"took longer than 0\.2 s"):
        run(SLEEPS, cwd=tmp_path, timeout_s=0.2)


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_processes_end_with_their_block_after_any_exception(end: type[BaseException], tmp_path: Path) -> None:
    pids: list[int] = []

    def fail_with_a_process() -> None:
        with Processes(tmp_path) as processes:
            pids.append(started(processes, SLEEPS))
            raise end

    with pytest.raises(end):
        fail_with_a_process()
    assert pids
    assert has_ended(pids[0])


def test_a_process_that_ignores_being_asked_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.peers.processes.STOP_S", 0.1)
    with Processes(tmp_path) as processes:
        pid = started(processes, IGNORES_SIGTERM)
    assert has_ended(pid)


def test_a_process_that_ends_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("n0", [sys.executable, "-c", "import sys; sys.exit('no such port')"])
        with pytest.raises(CannotRunError, match="n0 ended with 1: no such port"):
            processes.wait(lambda: False, "ready", 30)


class _Broken:
    name = "broken"
    about = "starts never"

    def fetch(self) -> None:
        tool(sys.executable, "runs it")

    @contextmanager
    def running(self, flush: Flush, directory: Path) -> Iterator[RunningService]:
        with Processes(directory) as processes:
            processes.start("n0", [sys.executable, "-c", "import sys; sys.exit('disk on fire')"])
            processes.wait(lambda: False, f"{flush} nodes are ready", 30)
            yield  # type: ignore[misc]


def test_a_service_that_does_not_start_is_skipped_and_leaves_no_files(tmp_path: Path) -> None:
    shown = comparison()
    kept: list[Comparison] = []
    settings = Settings(list(ROWS), 2, Timing(0.1, 0.0, 1000), tmp_path)
    measure(fetch_all([_Broken()], shown, lambda _: None), settings, shown, lambda _: None, kept.append)
    assert {each.row for each in shown.skipped} == set(ROWS)
    assert len(shown.skipped) == len(ROWS), "the second run does not try again"
    assert "disk on fire" in shown.skipped[0].reason
    assert not list(tmp_path.iterdir())


@pytest.fixture
def nats_is_there() -> None:
    if not (fetched.PEERS_DIR / f"nats-server-{VERSION}" / "nats-server").exists():
        pytest.skip(f"no NATS {VERSION} in .peers: `make bench-peers` fetches it")
    try:
        Nats().fetch()
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("nats_is_there")
def test_nats_runs_every_load_and_leaves_no_files(tmp_path: Path) -> None:
    shown = comparison()
    kept: list[Comparison] = []
    rows = ["sync-1x64", "sync-8x64", "async-latency", "consume"]
    measure([Nats()], Settings(rows, 1, Timing(0.5, 0.2, 5000), tmp_path), shown, lambda _: None, kept.append)
    assert shown.skipped == []
    assert len(kept) == 2, "after each turn"
    assert {each.row for each in shown.figures} == set(rows)
    for each in shown.figures:
        assert each.messages_per_s[0] > 0
        assert each.cpu_us_per_message[0] > 0
        assert each.errors == 0
    assert not list(tmp_path.iterdir())


def test_ctrl_c_stops_the_nodes_and_removes_their_files(tmp_path: Path) -> None:
    # The parent of the tests may ignore SIGINT, as shells do for background processes.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from bench.peers.run import main; main()"
    )
    command = [sys.executable, "-c", program, "--peers", "", "--rows", "sync-1x64", "--seconds", "600"]
    output = tmp_path / "run.toml"
    with subprocess.Popen(
        [*command, "--work-dir", str(tmp_path), "--output", str(output)], stdout=subprocess.PIPE, text=True
    ) as bench:
        pids = _wait_for_nodes(tmp_path, bench)
        bench.send_signal(signal.SIGINT)
        bench.wait(120)
    assert pids
    assert all(map(has_ended, pids))
    assert not list(tmp_path.glob("dledger-peers-*"))
    assert not output.exists()


def _wait_for_nodes(work_dir: Path, bench: subprocess.Popen[str]) -> list[int]:
    """Return the pids of our nodes once all three have one."""
    while bench.poll() is None:
        pids = [path.read_text().split() for path in work_dir.glob("dledger-peers-*/nodes/cluster/broker-a-n*/pid")]
        if len(pids) == 3 and all(pids):
            return [int(words[0]) for words in pids]
    raise AssertionError("the benchmark ended early")


def test_the_page_shows_the_newest_run_that_was_kept() -> None:
    newest = max((ROOT / "bench/runs").glob("*-peers-*.toml"))
    assert markdown(decode(newest)) in (ROOT / "docs/performance/beside-peers.md").read_text()


def test_the_versions_that_are_fetched_are_exact() -> None:
    assert re.fullmatch(r"v\d+\.\d+\.\d+", VERSION)
