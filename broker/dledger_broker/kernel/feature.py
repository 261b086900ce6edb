"""Declaration of the replicated half of a feature: its addition to the state that all nodes have."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_broker.kernel.commands import Kinds
from dledger_broker.kernel.tables import Table, TableKey


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """A feature's commands, and the table that applies them. Many features have neither.

    If `activated`, its commands are proposed and its requests taken only once the group has activated it, by its name
    (`kernel.activation`). Such a feature is never renamed.
    """

    name: str
    commands: Kinds = field(default_factory=dict)
    table: TableKey[Table] | None = None
    activated: bool = False
