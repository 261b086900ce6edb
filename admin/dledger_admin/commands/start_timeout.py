"""`--timeout` of the commands that start nodes and wait for them."""

from __future__ import annotations

import click

from ..cluster.starting import START_TIMEOUT_S
from .options import Command, FiniteFloat


def start_timeout_option(command: Command) -> Command:
    """Add `--timeout SECONDS`, as parameter `timeout`, beside `--detach`; see `start_patience_s`."""
    return click.option(
        "--timeout",
        type=FiniteFloat(min=0),
        metavar="SECONDS",
        help="With --detach: give up after this time without progress of any node. Reading the log and applying "
        f"committed entries are progress.  [default: {START_TIMEOUT_S:.0f}]",
    )(command)


def start_patience_s(timeout_s: float | None, *, detach: bool) -> float:
    """Return the seconds that `--timeout` gives, or its default. Raises `click.UsageError` without `--detach`."""
    if timeout_s is not None and not detach:
        raise click.UsageError("--timeout goes with --detach: in the foreground nothing is given up")
    return START_TIMEOUT_S if timeout_s is None else timeout_s
