"""A group of the native engine's cores, see `dledger.testing.engine_group`."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.core.raft import Raft
from dledger.engines.native import start_core
from dledger.testing.engine_group import ENTRY_BYTES, EngineGroup


class CoreGroup(EngineGroup[Raft]):
    """An `EngineGroup` whose engines are looked into."""

    def __init__(
        self,
        *voters: str,
        learners: Iterable[str] = (),
        strangers: Iterable[str] = (),
        seed: int = 1,
        one_entry_a_message: bool = False,
    ) -> None:
        """`strangers` run but are no members."""
        super().__init__(
            start_core,
            *voters,
            learners=learners,
            strangers=strangers,
            seed=seed,
            max_run_bytes=ENTRY_BYTES if one_entry_a_message else 1 << 20,
        )
