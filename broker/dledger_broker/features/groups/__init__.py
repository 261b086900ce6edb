"""Consumer groups: their settings, what users ask about these, and the topics that stand for groups.

`table.py` has what is replicated, `proposals.py` the changes of it that a leader proposes,
`requests.py` the request codes.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.groups.table import GROUP_COMMANDS, GROUPS
from dledger_broker.kernel.feature import Feature

FEATURE: Final = Feature("groups", GROUP_COMMANDS, GROUPS)
