"""Report of a run: `report.html`, a self-contained page, and `report.json` with the same figures.

`summary` gathers the figures, `charts` draws the timeline, and `templates/report.html` is the page.
"""

from .page import JSON_FILE, write_report
from .summary import Summary, summarize

__all__ = ["JSON_FILE", "Summary", "summarize", "write_report"]
