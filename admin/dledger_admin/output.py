"""One way to print results: text for people, JSON (one document on one line) for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import click
import msgspec

Command = TypeVar("Command", bound=Callable[..., object])
Result = TypeVar("Result")


def output_option(command: Command) -> Command:
    """Add `-o json|text` to a command, as parameter `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the result.",
    )(command)


def shown(text: str) -> str:
    """Return a text on one line without control characters for a terminal: clients may have written anything."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def shown_lines(text: str) -> str:
    """Return lines without control characters for a terminal."""
    return "\n".join(map(shown, text.split("\n")))


def say(text: str) -> None:
    """Tell a person something beside the result, on standard error."""
    click.echo(shown_lines(text), err=True)


def write_out(data: bytes) -> None:
    """Write to standard output at once. A reader that has seen enough, such as `head`, ends the command with 0."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        let_go_of_output()
        raise click.exceptions.Exit(0) from None


def let_go_of_output() -> None:
    """Drop unwritten output: at its end Python would try to write it again, and report the failure."""
    if sys.stdout is None:  # it is closed
        return
    try:
        sys.stdout.flush()
    except OSError:
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)


def emit(result: Result, output: str, render: Callable[[Result], str]) -> None:
    """Print `result` (anything msgspec can encode) as JSON, or as `render` shows it."""
    if output == "json":
        click.echo(msgspec.json.encode(result))  # bytes: UTF-8 whatever the terminal's encoding is
        return
    text = render(result)
    if text:
        click.echo(shown_lines(text))


def columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an aligned table: numbers to the right, everything else to the left."""
    cells = [list(header), *([("-" if value is None else shown(str(value))) for value in row] for row in rows)]
    numeric = [bool(rows) and all(isinstance(row[index], int | float) for row in rows) for index in range(len(header))]
    widths = [max(len(line[index]) for line in cells) for index in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
