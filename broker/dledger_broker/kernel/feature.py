"""Declaration of a feature: what it adds to the replicated state."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_broker.kernel.commands import Kinds
from dledger_broker.kernel.tables import Table, TableKey


@dataclass(frozen=True)
class Feature:
    """A feature's commands, and its table, which applies them."""

    name: str
    commands: Kinds
    table: TableKey[Table]
