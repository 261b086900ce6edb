"""Simulated runs of every scenario end as they did when they were recorded, down to the bytes of each answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_sim.brokers.lab import SCENARIOS
from tests.recorded.fingerprints import differences, fingerprint, recorded, recorded_scenarios

ROOT = Path(__file__).parents[2]
SEEDS = 20
"""Of each scenario; `make golden` compares all that are recorded."""
REPEATED = [("log", 3), ("threads", 2), ("broker", 1), ("races", 4)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_simulated_runs_end_as_they_were_recorded(scenario: str) -> None:
    if os.environ.get("RECORD_GOLDEN") == "yes":
        pytest.skip("recorded by make golden RECORD=yes")
    before = recorded(scenario)
    assert before is not None, f"{scenario} was not recorded: make golden RECORD=yes does that"
    assert len(before) >= SEEDS
    found = [fingerprint(scenario, seed) for seed in range(1, SEEDS + 1)]
    changes = differences(before, found)
    if changes:
        pytest.fail("\n".join((f"{len(changes)} of {SEEDS} seeds of {scenario} differ", *changes)), pytrace=False)


def test_every_recorded_scenario_is_still_simulated() -> None:
    assert recorded_scenarios() <= set(SCENARIOS)


def test_a_fingerprint_depends_on_no_hash_seed_and_no_earlier_run() -> None:
    program = (
        "from tests.recorded.fingerprints import fingerprint\n"
        f"print(*[fingerprint(*case) for case in {REPEATED[::-1]}], sep='\\n')"
    )
    alone = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert alone.stdout.splitlines()[::-1] == [fingerprint(*case) for case in REPEATED]


def test_a_difference_names_the_seed_and_the_parts_that_changed() -> None:
    before = ["seed 1 events 17 log aaa answers bbb", "seed 2 events 9 log ccc answers ddd"]
    assert not differences(before, before)
    changed = [before[0], "seed 2 events 10 log ccc answers eee"]
    assert differences(before, changed) == ["seed 2: events 9 -> 10, answers ddd -> eee"]
    broken = ["seed 1 broken nothing-is-lost"]
    assert differences(broken, before) == [
        "seed 1: broken nothing-is-lost -> None, events None -> 17, log None -> aaa, answers None -> bbb"
    ]
