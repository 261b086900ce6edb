"""Help of groups of commands: each with its whole first sentence, in sections where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from dledger_base.similar_names import did_you_mean

_MAX_SUMMARY_CHARS: Final = 1 << 16
"""Maximum number of characters of a summary. No sentence reaches it."""


class HelpGroup(click.Group):
    """A group of commands that shows the first sentence of each whole, under the headings of `sections`.

    A command that is in no section is shown under the heading "Commands".
    """

    sections: Mapping[str, Sequence[str]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; raises `UsageError` that names the one that was probably meant."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            ctx.fail(f"No such command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all commands."""
        visible = [name for name in self.list_commands(ctx) if not _is_hidden(self.get_command(ctx, name))]
        in_sections = {name for names in self.sections.values() for name in names}
        rest = [name for name in visible if name not in in_sections]
        for heading, names in (*self.sections.items(), ("Commands", rest)):
            rows = [(name, self._summarize(ctx, name)) for name in names if name in visible]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def _summarize(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(_MAX_SUMMARY_CHARS)


HelpGroup.group_class = HelpGroup


def _is_hidden(command: click.Command | None) -> bool:
    return command is None or command.hidden
