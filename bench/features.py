"""Benchmarks of single features, by name: `python -m bench.features [NAME ...]`, all of them by default.

Each runs as a process of its own, one after the other. If one fails, the others still run.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final, NamedTuple

import click


class Feature(NamedTuple):
    """Benchmark of a feature: the module, and what it measures. `arguments` are for a usual run."""

    module: str
    measures: str
    arguments: tuple[str, ...] = ()


FEATURES: Final = {
    "idempotent": Feature("idempotent", "the cost of idempotent sends"),
    "delayed": Feature("delayed", "the lateness of delayed messages, and the cost of a million of them to three nodes"),
    "many-delayed": Feature(
        "many_delayed", "three million delayed messages on one node: held, then delivered", ("3000000",)
    ),
    "time-index": Feature("time_index", "the time index by itself"),
    "filters": Feature("filters", "the number of messages that a consumer with a filter skips in a second"),
    "transactions": Feature("transactions", "commits in a second, and the cost of transactions that stay open"),
    "security": Feature("security_cost", "the processor time that TLS and access control cost"),
    "quotas": Feature("neighbour", "the effect on other clients when some are held at a quota"),
    "failover": Feature(
        "stock_failover",
        "failed sends of an unmodified client whose leader is killed",
        ("--client", "cpp", "--senders", "1", "--kills", "5"),
    ),
    "telemetry": Feature("telemetry", "the client's processor time for OpenTelemetry's spans and metrics"),
    "spark": Feature("spark", "the speed of reads by Spark"),
    "spark-beside": Feature("spark_beside", "the cost of a Spark job to the producers beside it"),
}


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice([*FEATURES]))
def main(names: tuple[str, ...]) -> None:
    """Run benchmarks, and end with exit code 1 if one of them failed."""
    failed = []
    for name in names or FEATURES:
        feature = FEATURES[name]
        click.echo(f"\n== {name}: {feature.measures}")
        command = [sys.executable, "-m", f"bench.{feature.module}", *feature.arguments]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        raise click.ClickException(f"these failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
