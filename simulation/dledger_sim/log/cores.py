"""Tables of logs inside engines, for the engines of this project: others are known by their boundary alone."""

from __future__ import annotations

from typing import Protocol, cast

from dledger.core.log_table import LogTable
from dledger.core.progress import Progress
from dledger.replica.replica import Replica
from dledger.types import Membership, ReplicaId


class Core(Protocol):
    """An engine that keeps its log in a table of the native core's."""

    @property
    def table(self) -> LogTable: ...
    @property
    def progress(self) -> dict[ReplicaId, Progress]: ...
    @property
    def membership(self) -> Membership: ...


def core_of(replica: Replica) -> Core:
    """What keeps the log of a replica whose engine is one of this project."""
    core = replica.engine
    assert isinstance(getattr(core, "table", None), LogTable), core
    return cast(Core, core)
