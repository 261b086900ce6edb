"""`--timeout` of the commands that start nodes and wait for them."""

from __future__ import annotations

import click

from ..cluster.starting import START_TIMEOUT_S
from .options import Command


def start_timeout_option(command: Command) -> Command:
    """Add `--timeout SECONDS`, as parameter `timeout`, beside `--detach`; see `start_patience_s`."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="With --detach: give up once no node has got any further for so long. One that reads its log, or applies "
        f"what was committed, gets on.  [default: {START_TIMEOUT_S:.0f}]",
    )(command)


def start_patience_s(timeout_s: float | None, *, detach: bool) -> float:
    """Return the seconds that `--timeout` gives, or its default. Raises `click.UsageError` without `--detach`."""
    if timeout_s is not None and not detach:
        raise click.UsageError("--timeout goes with --detach: in the foreground nothing is given up")
    return START_TIMEOUT_S if timeout_s is None else timeout_s
