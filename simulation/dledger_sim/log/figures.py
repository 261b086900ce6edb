"""Writer of a campaign's totals as a section of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dledger_sim.log.totals import Totals

BEGIN: Final = "<!-- simulator figures: written by make proof -->"
END: Final = "<!-- end of simulator figures -->"


def figures(totals: Totals, commit: str | None = None) -> str:
    """Return a table in Markdown with the commit, the amount that was simulated, and the results."""
    by_scenario = ", ".join(f"{count:,} {name}" for name, count in sorted(totals.by_scenario.items()))
    rows = [
        *([("commit", f"`{commit}`")] if commit else []),
        ("seeds", f"{totals.seeds:,} ({by_scenario})"),
        ("simulated hours", f"{totals.simulated_s / 3600:,.1f}"),
        ("times real time, per core", f"{totals.simulated_s / totals.cpu_s:.0f}" if totals.cpu_s else "–"),
        ("events", f"{totals.events:,}"),
        ("entries committed", f"{totals.committed:,}"),
        ("operations checked", f"{totals.operations:,}"),
        *((f"faults: {name}", f"{count:,}") for name, count in sorted(totals.fault_classes.items())),
        ("seeds that broke a promise", f"{totals.broken:,}"),
    ]
    return "\n".join(("| what | how much |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)))


def write_figures(page: Path, totals: Totals, commit: str | None = None) -> None:
    """Put the totals into a page. Raises `OSError`."""
    write_section(page, BEGIN, END, figures(totals, commit))


def write_section(page: Path, begin: str, end: str, section: str) -> None:
    """Replace the text between two marks of a page, or append it with the marks. Raises `OSError`."""
    text = page.read_text(encoding="utf-8")
    marked = f"{begin}\n\n{section}\n\n{end}"
    before, found, rest = text.partition(begin)
    text = before + marked + rest.partition(end)[2] if found else f"{text.rstrip()}\n\n{marked}\n"
    page.write_text(text, encoding="utf-8")
