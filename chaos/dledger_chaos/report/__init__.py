"""A run on one page: `report.html`, which needs nothing else, and the same figures as `report.json`.

`summary` gathers what the page says, `charts` draws its timeline, `templates/report.html` is its text.
"""

from .page import JSON_FILE, write_report
from .summary import Summary, summarize

__all__ = ["JSON_FILE", "Summary", "summarize", "write_report"]
