"""Every command of `dledger`, for tests that hold for all of them."""

from collections.abc import Iterator

import click

from dledger_admin.cli import main


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands and groups of commands with the words that call them. `dledger` itself has no words."""
    tree: list[tuple[tuple[str, ...], click.Command]] = [((), main)]
    while tree:
        words, command = tree.pop()
        yield words, command
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=words[-1] if words else "dledger")
            tree += [((*words, name), command.get_command(context, name)) for name in command.list_commands(context)]


def leaves() -> list[tuple[tuple[str, ...], click.Command]]:
    """Return the commands that are no groups of commands."""
    return [(words, command) for words, command in commands() if not isinstance(command, click.Group)]
