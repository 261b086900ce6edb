"""Log reader of queries and indexes, while the log is there and while a snapshot replaces it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from dledger.errors import NotLeaderError
from dledger_broker.views.logreader import AppliedLog, LogReader


async def test_a_log_that_is_being_replaced_is_asked_for_at_other_nodes() -> None:
    """While a snapshot replaces the log, the segments are gone, and the old state is still there."""
    log = SimpleNamespace(first_position=0, segments=list)
    reader = LogReader(cast(AppliedLog, SimpleNamespace(log=log, applied_position=158_479)))
    with pytest.raises(NotLeaderError, match="is being replaced"):
        await reader.block(131_072, 65_536)
