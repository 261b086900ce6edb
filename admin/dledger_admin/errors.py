"""Errors of the command line.

A command that cannot do what was asked raises one of these; the user sees one line on stderr, never a traceback. A
command that needs more than the base install names the command that brings it.
"""

from __future__ import annotations

import importlib.util
from typing import Final

import click

from dledger_base.extras import install_command

from .output import shown_lines

UNHEALTHY: Final = 3
"""Exit code of a command that did what was asked, which was to look, and found that something is down or wrong."""


class AdminError(click.ClickException):
    """A command that cannot be carried out. The text names the thing, the found and the expected value, and a remedy.

    The process ends with exit code 1; `WrongUsageError` has 2.
    """

    def format_message(self) -> str:
        """Return the text as it is shown: what a server said of a client's name may have anything in it."""
        return shown_lines(super().format_message())


class UnhealthyError(AdminError):
    """Nobody answers who could say how a cluster is: nobody finds it, so it is not well."""

    exit_code = UNHEALTHY


class WrongUsageError(AdminError):
    """An option or argument that nothing outside of the command line could make right; exit code 2.

    The argument parser itself raises `click.UsageError`, with the same exit code.
    """

    exit_code = click.UsageError.exit_code


class LayoutError(AdminError):
    """A directory that holds no cluster, or one of another layout, or none with the node that was named."""


class ImpossibleLayoutError(LayoutError, WrongUsageError):
    """Numbers of groups, nodes or ports that make no cluster."""


class StartError(AdminError):
    """A process of the cluster did not come up; the text holds the end of what it printed."""


def require(extra: str, *modules: str) -> None:
    """Raise `AdminError` with the pip command for `extra` unless all `modules` can be imported."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise AdminError(f"this command needs the extra {extra} ({', '.join(missing)}): {install_command(extra)}")
