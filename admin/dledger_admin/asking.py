"""Confirmation of commands that destroy something: the command lists its effects, and the operator says yes or no."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Final, NamedTuple

import click
import msgspec

from .errors import AdminError, WrongUsageError
from .output import emit, say


class WouldGo(msgspec.Struct, frozen=True):
    """Result of a command with `--dry-run`: one text for each thing that would go."""

    would_go: list[str]


def is_at_terminal() -> bool:
    """Tell whether somebody can answer on standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


class Asking(NamedTuple):
    """The options `--yes` and `--dry-run` of a command that destroys something."""

    yes: bool
    dry_run: bool

    def agreed(self, list_effects: Callable[[], list[str]], output: str) -> bool:
        """Return whether to go on. With `--dry-run` print the effects that `list_effects` returns, and return False.

        Raises `WrongUsageError` where nobody can be asked, and `AdminError` for the answer no.
        """
        if self.yes and self.dry_run:
            raise WrongUsageError("--yes and --dry-run contradict each other: give one of them")
        if self.yes:
            return True
        if self.dry_run:
            emit(WouldGo(list_effects()), output, _render)
            return False
        if not is_at_terminal():
            raise WrongUsageError(
                "this cannot be taken back, and there is no terminal to ask at: give --yes, or --dry-run to see "
                "what goes"
            )
        say(_render(WouldGo(list_effects())))
        if not click.confirm("This cannot be taken back. Go on?", err=True):
            raise AdminError("the answer was no: nothing was changed")
        return True


_YES: Final = click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
_DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Show the effects, and change nothing.")


def asks_first(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--yes` and `--dry-run` to a command, as parameter `asking`."""

    @wraps(command)
    def wrapper(*arguments: object, yes: bool, dry_run: bool, **options: object) -> None:
        command(*arguments, asking=Asking(yes, dry_run), **options)

    return _YES(_DRY_RUN(wrapper))


def _render(result: WouldGo) -> str:
    return "\n".join(["this goes:", *(f"  {line}" for line in result.would_go)])
