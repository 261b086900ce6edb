"""Writes the report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jinja2
import msgspec
from markupsafe import Markup

from dledger_chaos.checkers.base import RunData, Verdict

from .summary import summarize

HTML_FILE: Final = "report.html"
JSON_FILE: Final = "report.json"

_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(run: RunData, verdicts: Sequence[Verdict], directory: Path | None = None) -> Path:
    """Write `report.html` and `report.json` into the run's directory, or another; returns the page's path.

    The page holds its style and its picture; it loads nothing.
    """
    from .charts import timeline  # the import of matplotlib is the slowest of all, and only a report needs it

    into = run.directory if directory is None else directory
    summary = summarize(run, verdicts)
    (into / JSON_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    # The picture is drawn by matplotlib from numbers and escaped names.
    picture = Markup(timeline(run, summary))  # noqa: S704
    page = _TEMPLATES.get_template("report.html").render(summary=summary, run=run.info, timeline=picture)
    path = into / HTML_FILE
    path.write_text(page, encoding="utf-8")
    return path
