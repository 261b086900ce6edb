"""A run on one page: `report.html`, which needs nothing else, and the same figures as `report.json`.

`summary` gathers what the page says, `charts` draws its timeline, `templates/report.html` is its text.
"""

from .page import write_report
from .summary import Summary, summarize

__all__ = ["Summary", "summarize", "write_report"]
