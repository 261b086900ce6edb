"""Promises of a consensus engine, as tests that its author runs on its kind.

    @pytest.mark.parametrize("promise", [*PROMISES, *TRANSFER_PROMISES], ids=lambda promise: promise.__name__)
    def test_mine(promise):
        promise(MINE)

Each promise is a function of the `EngineKind`. Name and docstring say what is promised. It raises `InvariantError` if
the promise does not hold. Engines are only used through `dledger.consensus`, in groups that
`dledger_sim.engine_group` drives. Every engine must hold all `PROMISES`. An engine that can hand leadership over,
or change the group's members, must hold the promises of that, too.
"""

from __future__ import annotations

from typing import Final

from dledger_sim.engine_suite import elections, leading, members, messages, replication, storms, transfers
from dledger_sim.engine_suite.groups import Promise

PROMISES: Final[tuple[Promise, ...]] = (
    *elections.PROMISES,
    *replication.PROMISES,
    *leading.PROMISES,
    *messages.PROMISES,
    *storms.PROMISES,
)
TRANSFER_PROMISES: Final[tuple[Promise, ...]] = transfers.PROMISES
MEMBERSHIP_PROMISES: Final[tuple[Promise, ...]] = members.PROMISES
