"""Errors of the command line.

A command that cannot do what was asked raises one of these; the user sees one line on stderr, never a traceback.
"""

from __future__ import annotations

import click


class AdminError(click.ClickException):
    """What was asked cannot be done; the text names the thing, what was found, what was expected and what to do.

    The process ends with exit code 1 (2, a usage error, is left to the argument parser).
    """


class LayoutError(AdminError):
    """Numbers of groups, nodes or ports that make no cluster, or a directory that belongs to another layout."""


class StartError(AdminError):
    """A process of the cluster did not come up; the text holds the end of what it printed."""
