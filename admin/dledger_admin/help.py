"""Help of groups of commands: each with its whole first sentence, in sections where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

_WHOLE: Final = 1 << 16
"""Characters: no sentence is cut."""


class HelpGroup(click.Group):
    """A group of commands that shows the first sentence of each whole, under the headings of `sections`.

    A command that is in no section is shown under the heading "Commands".
    """

    sections: Mapping[str, Sequence[str]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all commands."""
        there = [name for name in self.list_commands(ctx) if not _is_hidden(self.get_command(ctx, name))]
        placed = {name for names in self.sections.values() for name in names}
        rest = [name for name in there if name not in placed]
        for heading, names in (*self.sections.items(), ("Commands", rest)):
            rows = [(name, self._summary(ctx, name)) for name in names if name in there]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def _summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(_WHOLE)


HelpGroup.group_class = HelpGroup


def _is_hidden(command: click.Command | None) -> bool:
    return command is None or command.hidden
