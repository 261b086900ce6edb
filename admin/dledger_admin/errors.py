"""Errors of the command line.

A command that cannot do what was asked raises one of these; the user sees one line on stderr, never a traceback.
"""

from __future__ import annotations

from typing import Final

import click

UNHEALTHY: Final = 3
"""Exit code of a command that did what was asked, which was to look, and found that something is down or wrong."""


class AdminError(click.ClickException):
    """What was asked cannot be done; the text names the thing, what was found, what was expected and what to do.

    The process ends with exit code 1; see `WrongUsageError` for 2.
    """


class UnhealthyError(AdminError):
    """Nobody answers who could say how a cluster is: nobody finds it, so it is not well."""

    exit_code = UNHEALTHY


class WrongUsageError(AdminError):
    """An option or argument that nothing outside of the command line could make right; exit code 2.

    What the argument parser refuses by itself is a `click.UsageError`, with the same exit code.
    """

    exit_code = click.UsageError.exit_code


class LayoutError(AdminError):
    """A directory that holds no cluster, or one of another layout, or none with the node that was named."""


class ImpossibleLayoutError(LayoutError, WrongUsageError):
    """Numbers of groups, nodes or ports that make no cluster."""


class StartError(AdminError):
    """A process of the cluster did not come up; the text holds the end of what it printed."""
