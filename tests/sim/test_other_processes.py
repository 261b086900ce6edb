"""Runs in other processes: nothing but the seed decides what happens, and in which order."""

import os
import subprocess
import sys

import pytest

DIGEST = """
import sys
from zlib import crc32
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case
from dledger_sim.log.scheduler import Scheduler

at, digest = Scheduler.at, 0

def digested(self, moment, callback):
    global digest
    digest = crc32(repr((self.now, moment)).encode(), digest)
    return at(self, moment, callback)

Scheduler.at = digested
outcome = judge(Case(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), usual=True), "dledger_sim.brokers.lab")
print(digest, outcome.events, sorted(outcome.counts.items()), outcome.violation)
"""
"""Prints a digest of all moments for which something was scheduled, in their order."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "seed", "seconds"),
    [
        ("views", 3, 5.5),
        ("mixed", 7, 10),
        ("resets", 7, 10),
        ("assignments", 7, 10),
        ("broker", 7, 10),
        ("client", 3, 5),
    ],
)
def test_a_seed_repeats_exactly_though_sets_of_names_have_another_order(
    scenario: str, seed: int, seconds: float
) -> None:
    """Seed 3 of `views` failed or passed by the order in which pops were asked that waited in two topics."""
    told = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, scenario, str(seed), str(seconds)],
            env={**os.environ, "PYTHONHASHSEED": number},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number in ("1", "3")
    }
    assert len(told) == 1
