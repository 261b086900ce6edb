"""Promises of a consensus engine, as tests that its author runs on its kind.

    @pytest.mark.parametrize("promise", [*PROMISES, *TRANSFER_PROMISES], ids=lambda promise: promise.__name__)
    def test_mine(promise):
        promise(MINE)

Each promise is a function of the `EngineKind`; name and docstring say what is promised, and it raises `InvariantError`
where that does not hold.  Engines are seen through `dledger.consensus` alone, in groups that
`dledger.testing.engine_group` drives.  Every engine holds all `PROMISES`.  Those who hand leadership over, or change
the group's members, hold the promises of that, too.
"""

from __future__ import annotations

from typing import Final

from dledger.testing.engine_suite import elections, leading, members, messages, replication, storms, transfers
from dledger.testing.engine_suite.groups import Promise

PROMISES: Final[tuple[Promise, ...]] = (
    *elections.PROMISES,
    *replication.PROMISES,
    *leading.PROMISES,
    *messages.PROMISES,
    *storms.PROMISES,
)
TRANSFER_PROMISES: Final[tuple[Promise, ...]] = transfers.PROMISES
MEMBERSHIP_PROMISES: Final[tuple[Promise, ...]] = members.PROMISES
