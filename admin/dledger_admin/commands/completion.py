"""`dledger completion`: what a shell reads in order to complete the command's words."""

from __future__ import annotations

import os
from typing import Final

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class

COMPLETE_VARIABLE: Final = "_DLEDGER_COMPLETE"
"""Set by the shell when it asks for completions."""

_SEPARATORS: Final = frozenset(":=")


class _WholeWords(BashComplete):
    """Bash cuts words at `:` and `=`: `--namesrv 127.0.0.1:9876` arrives in four pieces."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is being typed, and that one, put together again."""
        before, incomplete = super().get_completion_args()
        *words, last = whole_words([*before, incomplete])
        return words, last


def whole_words(pieces: list[str]) -> list[str]:
    """Join what was cut at `:` and `=`; a piece that is one of these stood between its neighbours."""
    words: list[str] = []
    joins = False
    for piece in pieces:
        if words and (joins or piece in _SEPARATORS):
            words[-1] += piece
        else:
            words.append(piece)
        joins = piece in _SEPARATORS
    return words


def is_asked_for() -> bool:
    """Tell whether a shell asks for completions, and prepare the answer."""
    if not os.environ.get(COMPLETE_VARIABLE, "").endswith("_complete"):
        return False
    add_completion_class(_WholeWords)
    return True


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, topics, groups and nodes in a shell.

    bash, in ~/.bashrc, and zsh, in ~/.zshrc: eval "$(dledger completion bash)", or zsh.

    fish, in ~/.config/fish/config.fish: dledger completion fish | source

    Names come from the cluster of --namesrv or --data in the line so far, or of the environment.
    """
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(ctx.find_root().command, {}, "dledger", COMPLETE_VARIABLE).source())
