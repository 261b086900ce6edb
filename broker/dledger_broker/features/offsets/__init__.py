"""Offsets: how far consumer groups have come, and where queues begin and end.

`table.py` has what is replicated, `recent_commits.py` who committed of late; `commits.py` and `buffer.py` take commits
into the log, `requests.py` has the request codes.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.offsets.table import OFFSET_COMMANDS, OFFSETS
from dledger_broker.kernel.feature import Feature

FEATURE: Final = Feature("offsets", OFFSET_COMMANDS, OFFSETS)
