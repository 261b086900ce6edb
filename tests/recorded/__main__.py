"""Compare fingerprints of simulated runs with those of an earlier build, or record them: `make golden`.

All processors take part. Exit code 1 if a fingerprint differs, or if none were recorded.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from multiprocessing import get_context

import click

from dledger_sim.brokers.lab import SCENARIOS
from tests.recorded.fingerprints import (
    RECORDED_SEEDS,
    differences,
    fingerprint,
    record,
    recorded,
    recorded_scenarios,
)

MOST_SHOWN = 5
"""Seeds of a scenario whose difference is shown."""


def _compare(scenario: str, found: list[str]) -> bool:
    """Print a report; whether nothing differs."""
    before = recorded(scenario)
    if before is None:
        print(f"{scenario}: never recorded", flush=True)
        return False
    before = before[: len(found)]
    changes = differences(before, found)
    missing = len(found) - len(before)
    print(
        f"{scenario}: {len(changes)} of {len(before)} seeds differ"
        + (f", {missing} more never recorded" * bool(missing))
    )
    for change in changes[:MOST_SHOWN]:
        print(f"  {change}")
    sys.stdout.flush()
    return not changes and not missing


@click.command()
@click.option("--seeds", type=click.IntRange(1, RECORDED_SEEDS), default=RECORDED_SEEDS, show_default=True)
@click.option("--scenario", "chosen", multiple=True, type=click.Choice(sorted(SCENARIOS)), help="By default all.")
@click.option("--record", "records", is_flag=True, help="Write the fingerprints of this build, of all seeds.")
def main(seeds: int, chosen: tuple[str, ...], records: bool) -> None:
    """Compare simulated runs with those of an earlier build."""
    scenarios = sorted(chosen or SCENARIOS)
    same = True
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for scenario in scenarios:
            numbers = range(1, (RECORDED_SEEDS if records else seeds) + 1)
            found = list(pool.imap(partial(fingerprint, scenario), numbers))
            if records:
                record(scenario, found)
                print(f"{scenario}: {len(found)} seeds recorded", flush=True)
            else:
                same &= _compare(scenario, found)
    for gone in sorted(recorded_scenarios() - set(SCENARIOS)):
        print(f"{gone}: recorded, and no scenario any more")
        same = False
    sys.exit(not same)


if __name__ == "__main__":
    main()
