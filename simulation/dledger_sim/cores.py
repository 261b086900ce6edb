"""Group of the native engine's cores; see `dledger_sim.engine_group`."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.core.raft import Raft
from dledger.engines.named import start_core
from dledger_sim.engine_group import ENTRY_BYTES, EngineGroup


class CoreGroup(EngineGroup[Raft]):
    """An `EngineGroup` of native cores, whose internal state tests may inspect."""

    def __init__(
        self,
        *voters: str,
        learners: Iterable[str] = (),
        strangers: Iterable[str] = (),
        seed: int = 1,
        one_entry_a_message: bool = False,
    ) -> None:
        """Make the group. `strangers` run but are not members."""
        super().__init__(
            start_core,
            *voters,
            learners=learners,
            strangers=strangers,
            seed=seed,
            max_run_bytes=ENTRY_BYTES if one_entry_a_message else 1 << 20,
        )
