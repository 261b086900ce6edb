"""One way to print results: text for people, JSON (one document on one line) for programs."""

from __future__ import annotations

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


def emit(result: Result, output: str, render: Callable[[Result], str]) -> None:
    """Print `result` (anything msgspec can encode) as JSON, or as `render` shows it."""
    if output == "json":
        click.echo(msgspec.json.encode(result))  # bytes: UTF-8 whatever the terminal's encoding is
        return
    text = render(result)
    if text:
        click.echo(text)


def columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an aligned table: numbers to the right, everything else to the left."""
    cells = [list(header), *([("-" if value is None else str(value)) for value in row] for row in rows)]
    numeric = [bool(rows) and all(isinstance(row[at], int | float) for row in rows) for at in range(len(header))]
    widths = [max(len(line[at]) for line in cells) for at in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
