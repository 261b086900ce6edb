"""Access to the log tables inside this project's engines. Other engines are visible by their boundary alone."""

from __future__ import annotations

from typing import Protocol, cast

from dledger.core.log_table import LogTable
from dledger.core.progress import Progress
from dledger.replica.replica import Replica
from dledger.types import Membership, ReplicaId


class Core(Protocol):
    """Engine that keeps its log in a table of the native core."""

    @property
    def table(self) -> LogTable: ...
    @property
    def progress(self) -> dict[ReplicaId, Progress]: ...
    @property
    def membership(self) -> Membership: ...


def core_of(replica: Replica) -> Core:
    """Return the engine of a replica, which must be an engine of this project."""
    core = replica.engine
    assert isinstance(getattr(core, "table", None), LogTable), core
    return cast(Core, core)
