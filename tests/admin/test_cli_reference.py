"""The reference of the commands cannot rot."""

from pathlib import Path

import click
import pytest

from dledger_admin.cli import _COMMANDS, main

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "cli.md").read_text(encoding="utf-8")


def commands() -> dict[str, click.Command]:
    """Return every command that does something, by the words that call it."""
    found: dict[str, click.Command] = {}
    for name in _COMMANDS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            context = click.Context(command)
            found |= {
                f"dledger {name} {inner}": command.get_command(context, inner)
                for inner in command.list_commands(context)
            }
        else:
            found[f"dledger {name}"] = command
    return found


@pytest.mark.parametrize(("words", "command"), commands().items(), ids=commands())
def test_every_command_is_in_the_reference_with_its_own_options(words, command):
    assert f"`{words}" in PAGE
    own = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    shared = {"--output", "--namesrv"}
    assert not [option for option in own - shared if option not in PAGE]
