"""The table of a comparison: a line for each service under each row, on a terminal or in a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table

from bench.peers.results import Comparison, Figures
from bench.peers.rows import ROWS

HEADINGS: Final = (
    "row", "service", "messages/s", "lowest to highest", "ours is × as fast", "p50 / p99 ms", "CPU µs/message",
    "generator µs/message", "memory MB",
)  # fmt: skip
_TEXT_COLUMNS: Final = 2
"""Number of columns from the left that hold words."""


def lines(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each line. A skipped row has its reason in the third cell."""
    for name in ROWS:
        for service in comparison.services:
            figures = comparison.of(name, service)
            if figures is not None:
                yield _make_cells(comparison, figures)
            yield from (
                (name, service, f"skipped: {each.reason}", *[""] * (len(HEADINGS) - 3))
                for each in comparison.skipped
                if (each.row, each.service) == (name, service)
            )
    for each in comparison.skipped:
        if not each.row:
            yield ("all", each.service, f"skipped: {each.reason}", *[""] * (len(HEADINGS) - 3))


def terminal_table(comparison: Comparison) -> Table:
    """Return the table for a terminal."""
    table = Table(title="Beside peers, medians of all runs", caption="; ".join(_facts(comparison)))
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if number < _TEXT_COLUMNS else "right")
    for cells in lines(comparison):
        table.add_row(*cells, end_section=False)
    return table


def markdown(comparison: Comparison) -> str:
    """Return the text for a page: how it was measured, the table, and a line about each service."""
    rows = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    rows += [f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines(comparison)]
    services = [f"- **{name}**: {about}." for name, about in comparison.services.items()]
    when = f"`{comparison.command}`, {comparison.date:%Y-%m-%d}. {comparison.about}"
    return "\n".join([when, "", "; ".join(_facts(comparison)) + ".", "", *rows, "", *services])


def _make_cells(comparison: Comparison, figures: Figures) -> tuple[str, ...]:
    rate, ratio = figures.messages_per_s, comparison.ratio(figures)
    error_note = f" ({figures.errors} errors)" if figures.errors else ""
    times = f"{_median(figures.p50_ms):.1f} / {_median(figures.p99_ms):.1f}" if figures.p50_ms else ""
    return (
        figures.row,
        figures.service,
        f"{_median(rate):,.0f}{error_note}",
        f"{min(rate):,.0f} to {max(rate):,.0f}",
        "" if ratio is None or ROWS[figures.row].mode == "latency" else f"{ratio:.2f}",
        times,
        f"{_median(figures.cpu_us_per_message):.1f}",
        f"{_median(figures.generator_us_per_message):.1f}",
        f"{_median(figures.memory_mb):.0f}",
    )


def _facts(comparison: Comparison) -> list[str]:
    return [f"{name.replace('_', ' ')} {value}" for name, value in comparison.machine.items()]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
