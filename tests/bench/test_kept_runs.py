"""Kept runs say when, on what and how they were measured, and the page shows the newest."""

import re
import tomllib
from datetime import datetime
from pathlib import Path

import pytest

from bench.scenarios import LOADS

ROOT = Path(__file__).resolve().parents[2]
RUNS = {path.name: tomllib.loads(path.read_text()) for path in sorted((ROOT / "bench/runs").glob("*.toml"))}
FULL = {name: run for name, run in RUNS.items() if re.fullmatch(r"\d{4}-\d\d-\d\d-\d{4}\.toml", name)}
FRAME = {"date", "about", "command", "machine"}


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_run_records_date_machine_and_figures(name: str) -> None:
    run = RUNS[name]
    assert isinstance(run["date"], datetime)
    assert name.startswith(f"{run['date']:%Y-%m-%d}-")
    assert run["about"].strip()
    assert run["machine"]["shared_cores"] > 0
    assert run.keys() - FRAME, "figures"


@pytest.mark.parametrize("name", FULL)
def test_a_full_run_has_every_scenario_beside_the_machines_limits(name: str) -> None:
    run = FULL[name]
    assert f"{run['date']:%Y-%m-%d-%H%M}.toml" == name
    assert run["command"]
    assert {"fdatasync_64k_us", "loopback_round_trip_us", "memory_copy_gb_per_s"} <= run["machine"].keys()
    assert run["messages_per_s"].keys() == LOADS.keys()


def test_the_page_shows_the_newest_full_run() -> None:
    page = (ROOT / "docs/performance/README.md").read_text()
    newest = FULL[max(FULL)]
    for rate in newest["messages_per_s"].values():
        assert f"| {rate:,} |" in page
    for limit in ("fdatasync_64k_us", "loopback_round_trip_us"):
        assert f"{newest['machine'][limit]} µs" in page
    for scenario in LOADS.values():
        assert f"| {scenario.target_messages_per_s:,} |" in page
